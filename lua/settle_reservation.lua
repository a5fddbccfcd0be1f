-- Settles a reservation, a grant with a member of its own, by the permits that were used.
-- Fewer than reserved: the rest is taken off the member, however much of it others have
-- left. More: the difference is charged from now on, whether it is free or not, by another
-- member. Both have the same effect however often they run, and if the request comes twice.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  the reservation's member, with the permits that were reserved
--   2  the permits that were used
--   3  the member of what is charged beyond those reserved, with its permits; without
--      these it is the call's identity
--   4  ms since the reservation was granted, no less than that
--   5  the same, no more than that
--   6  '' or, when this call may have run already, its age in ms
--   7  '' or the token of the 'again' answer
--   8  '' or the configuration for a limiter that has none, as for acquire: one that is
--      charged is made
-- Returns
--   the permits that came back, below 0 those charged; 0 if there is no limiter, or the
--   rest has come back by itself
--   'unknown'   this call may have run or not: what it charges has run out since
--   'taken'   as for acquire, of the id of ARGV 3
--   'again', token   the call must be repeated
--   CORRUPT <key's number> <field> <why>

--- @include "clock"
--- @include "config_or_new"
--- @include "answered"
--- @include "search"
--- @include "settle"
--- @include "make_config"
--- @include "own"
--- @include "take_off"
--- @include "keep_ttl"

local fields = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime', 'answered')
local member, used, charge, age, token = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[6], ARGV[7]
local more, identity = used - permits_of(member), string.sub(charge, 1, -5)
if not (fields[1] or fields[2] or fields[3] or fields[4]) and (more < 0 or ARGV[8] == '') then
  return 0
end
local config, new, problem = config_or_new(fields, ARGV[8])
if problem then
  return problem
end
local value_key, permits_key = config.value_key, config.permits_key
local now = tonumber(clock())

-- The reservation once more is charged: its id is then another, no call's, by which a repeat knows
-- without a search that it was charged, or was not.
local at = ({[8] = 1, [13] = 6, [20] = 9, [21] = 13})[#member]
local settled = string.sub(member, 1, at - 1) .. string.char((string.byte(member, at, at) + 128) % 256) .. string.sub(member, at + 1)

-- What an earlier run has charged. If others have given back all of it, and the reservation, it is
-- charged again.
local prefix = ''
if more > 0 then
  local charged, again, done = nil, nil, was_answered(fields[5], identity)
  local reserved = redis.call('ZSCORE', permits_key, member)
  if not reserved and redis.call('ZSCORE', permits_key, settled) then
    done = true
  elseif not (reserved or done) and age ~= '' then
    charged, again, prefix = search(permits_key, {charge}, false, token, now, age)
    if again then
      return {'again', again}
    end
    token = string.match(token, '^searched:%d+;(.*)$') or ''
  end
  if not (done or charged) and redis.call('ZSCORE', permits_key, charge) then
    if reserved or not is_own(permits_key, charge, now) then
      return {'taken'}
    end
    charged = true
  end
  if charged and age ~= '' and not new then
    first_write(permits_key, true)
    mark_answered(KEYS[1], fields[5], identity, now)
  end
  if done or charged then
    return -more
  end
  -- The age is a second more than needed.
  if age ~= '' and not reserved and tonumber(age) - 1000 >= config.interval then
    return {'unknown'}
  end
end

if new then
  problem = make_config(config, new, now, token, prefix)
  if problem then
    return problem
  end
end
local state, answer = settle(config, redis.call('GET', value_key), now, 0, token, prefix, more < 0)
if not state then
  return answer
end

local back = -more
if more > 0 then
  if state.unset then
    make_value(config, state.free)
  end
  redis.call('ZADD', permits_key, 'NX', digits(now), charge)
  redis.call('DECRBY', value_key, digits(more))
  local score = redis.call('ZSCORE', permits_key, member)
  if score then
    redis.call('ZADD', permits_key, score, settled)
    redis.call('ZREM', permits_key, member)
  end
  if age ~= '' then
    mark_answered(KEYS[1], fields[5], identity, now)
  end
else
  -- The search begins at the member: others were granted permits before and after it.
  local place = string.match(token, '^find:(.*)$') or digits(now - tonumber(ARGV[5])) .. ':0:'
  local found, further = find(permits_key, {member, used > 0 and with_permits(member, used) or nil}, false,
    now - tonumber(ARGV[4]), place)
  if further then
    return {'again', 'find:' .. further}
  end
  member = found and with_permits(member, found)
  local score = found and redis.call('ZSCORE', permits_key, member)
  back = score and tonumber(score) > now - config.interval and math.max(0, found - used) or 0
  if back > 0 then
    return_permits(config, member, back, not state.unset and state.free, state.window)
  end
end
keep_ttl(config, true, state.window)
return back
