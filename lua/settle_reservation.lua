-- Settles a reservation, a grant with a member of its own, by the permits that were used.
-- Fewer than reserved: the rest is taken off the member, however much of it others have
-- left. More: the difference is charged from now on, whether it is free or not, by another
-- member. Both have the same effect however often they run.
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
--   'taken'   another member has the id of ARGV 3; nothing was changed
--   'again', token   the call must be repeated
--   CORRUPT <key's number> <field> <why>

--- @include "clock"
--- @include "config_or_new"
--- @include "find"
--- @include "answered"
--- @include "settle"
--- @include "make_config"
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
local searched = string.match(token, '^find:') and token or nil

-- What an earlier run has charged. If others have given back all of it, it is charged
-- again. A token of a step below says that the search is over.
if more > 0 then
  local charged, again, done = nil, nil, was_answered(fields[5], identity)
  if not done and age ~= '' then
    charged, again = find(permits_key, {charge}, false, now - tonumber(age), token)
    if again then
      return {'again', again}
    end
  elseif not done and redis.call('ZSCORE', permits_key, charge) then
    return {'taken'}
  end
  if charged and age ~= '' and not new then
    first_write(permits_key, true)
    mark_answered(KEYS[1], fields[5], identity, now)
  end
  if done or charged then
    return -more
  end
  -- The age is a second more than needed.
  if age ~= '' and tonumber(age) - 1000 >= config.interval then
    return {'unknown'}
  end
end

if new then
  problem = make_config(config, new, now, token, '')
  if problem then
    return problem
  end
end
local state, answer = settle(config, redis.call('GET', value_key), now, 0, searched and '' or token, '', more < 0)
if not state then
  return answer
end

local back = -more
if more > 0 then
  if state.unset then
    make_value(config, state.free)
  end
  if redis.call('ZADD', permits_key, 'NX', digits(now), charge) > 0 then
    redis.call('DECRBY', value_key, digits(more))
  end
  if age ~= '' then
    mark_answered(KEYS[1], fields[5], identity, now)
  end
else
  -- The search begins at the member: others were granted permits before and after it.
  local found
  found, token = find(permits_key, {member}, false, now - tonumber(ARGV[4]),
    searched or 'find:' .. digits(now - tonumber(ARGV[5])) .. ':0:')
  if token then
    return {'again', token}
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
