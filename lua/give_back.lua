-- Gives back what one call was granted for callers that no longer want it.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  the call's member, as it was last seen; '' if no members are kept  2  permits
--   3  '' or, when this call may have run already, '1': it has not if more permits are left than it leaves
--   4  the call's age in ms, when it leaves: see search_of; without a member the epoch ms at which its window ends
--   5  '' or the token of the 'again' answer  6  this call's own identity
--   7  '' or how many ms the member is dated before the grant
-- Returns
--   the permits given back; fewer than asked for if they have run out; -1 if others have taken so many off that it may
--      have run or not
--   'again', token   the call must be repeated
--   CORRUPT <key's number> <field> <why>

--- @include "config" "expiry" "find" "take_off" "window" "answered" "keep_ttl"

local fields = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime', 'answered')
local config, problem = parse_config(fields)
if problem or not config then
  return problem or 0
end
if ARGV[3] == '' and was_answered(fields[5], ARGV[6]) then -- a repeat learns what an earlier one gave back
  return 0
end
local value_key, permits_key = config.value_key, config.permits_key
local text = redis.call('GET', value_key)
local value = integer(text)
if text and not value then
  return corrupt(config.value_place, 'value', 'is no integer: ' .. text)
end

local now = tonumber(clock())
if ARGV[1] == '' then
  -- A later window ends at least an interval later.
  if not value or math.abs((expiry(value_key) or 0) - tonumber(ARGV[4])) > math.min(config.interval / 2, 5) then
    return 0
  end
  first_write(permits_key, true)
  local back = math.max(0, math.min(config.rate - value, tonumber(ARGV[2])))
  redis.call('INCRBY', value_key, digits(back))
  end_window(config)
  return back
end
local member = ARGV[1]
local score = redis.call('ZSCORE', permits_key, member)
local done
if not score then
  local leaves, early = permits_of(member) - ARGV[2], tonumber(ARGV[7] or '')
  local newest = early and digits(now - early) .. ':0:' or ''
  local found, place = find(permits_key, {member, leaves > 0 and with_permits(member, leaves) or nil}, false,
    now - tonumber(ARGV[4]) - 3000 - (early or 0), string.match(ARGV[5], '^find:(.*)$') or newest)
  if place then
    return {'again', 'find:' .. place}
  end
  -- A copy of this call may have come before it, too.
  if found and (ARGV[3] == '' and found ~= leaves or found > leaves) then
    member = with_permits(member, found)
    score = redis.call('ZSCORE', permits_key, member)
  elseif found then
    done = found == leaves and tonumber(ARGV[2]) or -1
  end
end
if ARGV[3] ~= '' then
  first_write(permits_key, true)
  mark_answered(KEYS[1], fields[5], ARGV[6], now)
end
if done or not score or tonumber(score) <= now - config.interval then
  return done or 0
end
local permits = math.min(tonumber(ARGV[2]), permits_of(member))
local window = is_window(config)
return_permits(config, member, permits, value, window)
-- By a clock that was set back the keys, or a client's own pair, would live longer than they need.
if config.keep > 0 and redis.call('PTTL', KEYS[1]) > config.keep or config.per_client and
    math.max(redis.call('PTTL', value_key), redis.call('PTTL', permits_key)) > idle_time(config) then
  keep_ttl(config, true, window)
end
return permits
