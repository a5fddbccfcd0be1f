-- Settles a reservation, a grant with a member of its own, by the permits that were used. Fewer than reserved: the rest is
-- taken off the member, however much of it others have left. More: the difference is charged from now on, whether it is
-- free or not, by another member. A held reservation is dated to its grant; once the hold is over, all that was used is
-- charged from now on. All have the same effect however often they run, and if the request comes twice.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  the reservation's member, with the permits that were reserved  2  the permits that were used
--   3  the member of what is charged from now on, whatever its permits; without these it is the call's identity
--   4  ms since the reservation was granted, no less than that  5  the same, no more than that
--   6  '' or, when this call may have run already, its age in ms  7  '' or the token of the 'again' answer
--   8  '' or the configuration for a limiter that has none, as for acquire: one that is charged is made
--   9  '' or, if the reservation is held, how many ms its member is dated before the grant
--   10  then the epoch ms of the grant, no earlier than that
-- Returns
--   the permits that came back, below 0 those charged; 0 if there is no limiter, or the rest has come back by itself
--   'unknown'   this call may have run or not: what it charges has run out since
--   'taken'   as for acquire, of the id of ARGV 3
--   'again', token   the call must be repeated
--   CORRUPT <key's number> <field> <why>

--- @include "clock" "config_or_new" "answered" "search" "bring_up_to_date" "grant" "make_config" "own" "take_off"

local fields = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime', 'answered', 'lapsed')
local member, used, charge, age, token = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[6], ARGV[7]
local most, least, early = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[9] or '')
local granted = tonumber(ARGV[10] or '')
local more, identity, prefix = used - permits_of(member), string.sub(charge, 1, -5), ''
if not (fields[1] or fields[2] or fields[3] or fields[4]) and (more < 0 and not early or ARGV[8] == '') then
  return 0
end
local config, new, problem = config_or_new(fields, ARGV[8])
if problem then
  return problem
end
local value_key, permits_key = config.value_key, config.permits_key
local now = tonumber(clock())
local latest = granted or now - least
local earliest = latest + least - most

-- Looks for members of the reservation, dated so many ms before the grant. If it walks, a member is found that others have
-- taken permits off, and what was found stands before later tokens: a walk begins at the member's time, since others were
-- granted permits before and after it. The ages are as of when the call left: see search_of. Returns the permits, or nil if
-- there is none; or nil, token.
local function seek(name, members, before, walks)
  local known, rest = string.match(token, '^' .. name .. ':(%d+);(.*)$')
  local found, further = tonumber(known or '0'), nil
  if known then
    token = rest
  else
    local place = string.match(token, '^' .. name .. '=(.*)$')
    if walks and not place then
      local newest = tonumber(redis.call('ZRANGE', permits_key, '-1', '-1', 'WITHSCORES')[2] or '0')
      place = newest > now and '' or digits(latest - before) .. ':0:' -- it may still be dated ahead
    end
    found, further = find(permits_key, members, false, earliest - before - (granted and 0 or 3000), place)
    if further then
      return nil, prefix .. name .. '=' .. further
    end
  end
  prefix = prefix .. name .. ':' .. digits(found or 0) .. ';'
  return found ~= 0 and found or nil
end

-- The reservation as it is now, in row, and its score.
local row, found, again = member, nil, nil
if early or more < 0 then
  -- Once the hold is over for certain there is nothing to walk to.
  found, again = seek('reserved', {member, more < 0 and used > 0 and with_permits(member, used) or nil}, early or 0,
    not early or math.min(least, now - latest) < config.interval - early)
  if again then
    return {'again', again}
  end
  row = with_permits(member, found or permits_of(member))
end
local reserved = redis.call('ZSCORE', permits_key, row)
if reserved and (early or more < 0) and tonumber(reserved) <= now - config.interval then
  reserved = false
end

-- What is charged from now on. A held reservation that is gone may have been released, but only during the hold, and
-- if the config's field "lapsed" is no date since: then the interval became shorter, or the member was rewritten.
local extra = more
if early and not reserved and used > 0 and
    (math.max(most, now - latest) >= config.interval - early or (config.lapsed or tonumber(fields[6] or '') or -1) >= earliest) then
  extra = used
end
if new and extra <= 0 then
  return 0
end
charge = with_permits(charge, math.max(0, extra))

-- Once it is charged, or dated to its grant, the reservation has another id, no call's: by that a repeat knows without a
-- search whether it was settled.
local at = ({[8] = 1, [13] = 6, [20] = 9, [21] = 13})[#member]
local settled = string.sub(member, 1, at - 1) .. string.char((string.byte(member, at, at) + 128) % 256) .. string.sub(member, at + 1)
settled = with_permits(settled, math.min(used, permits_of(member)))

-- What an earlier run has charged. If others have given back all of it, and the reservation, it is charged again.
if extra > 0 then
  local charged, searched, done = nil, nil, was_answered(fields[5], identity)
  if not reserved then
    local left
    left, again = seek('settled', {settled}, 0, early and age ~= '')
    if again then
      return {'again', again}
    end
    done = done or left
  end
  if not (reserved or done) and age ~= '' then
    charged, again, searched, token = search(permits_key, {charge}, false, token, now, age)
    if again then
      return {'again', prefix .. again}
    end
    prefix = prefix .. searched
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
    return -extra
  end
  -- The ages are a second too much. If the first run may have come during the hold, what it left is dated to the grant.
  local oldest = early and age ~= '' and most - age < config.interval - early and most or tonumber(age)
  if oldest and not reserved and oldest - 1000 >= config.interval then
    return {'unknown'}
  end
end

if new then
  problem = make_config(config, new, now, token, prefix)
  if problem then
    return problem
  end
end
local state, answer = bring_up_to_date(config, redis.call('GET', value_key), now, 0, token, prefix, extra <= 0)
if not state then
  return answer
end

local back = 0
if extra > 0 then
  write_grant(config, state, {digits(now), charge}, digits(extra))
end
if age ~= '' and (extra > 0 or early) then
  mark_answered(KEYS[1], fields[5], identity, now)
end
local score = reserved and redis.call('ZSCORE', permits_key, row)
if score then
  local has = permits_of(row)
  local kept = math.min(has, used)
  if kept < has then
    back = has - kept
    return_permits(config, row, back, not state.unset and state.free, state.window)
  end
  if kept > 0 and (early or more > 0) then
    redis.call('ZADD', permits_key, digits(math.min(now, score + (early or 0))), with_permits(settled, kept))
    redis.call('ZREM', permits_key, with_permits(row, kept))
  end
end
keep_ttl(config, true, state.window)
return extra > 0 and -extra or back
