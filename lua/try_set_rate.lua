-- Gives a limiter its rate, unless it has one. All fields are written or none.
-- Where only the configuration was lost, permits in use stay counted.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1 rate  2 interval in ms  3 type  4 keepAliveTime in ms, 0 for none
--   5  letters, or '': w, as for acquire
--   6  '' or the token of the 'again' answer
-- Returns
--   1 when the rate was set, 0 when there was one
--   'again', token   the call is to be repeated; nothing was changed
--   CORRUPT <key's number> <field> <why>

--- @include "config"
--- @include "clock"
--- @include "pair"
--- @include "recount"
--- @include "window"
--- @include "give_ttl"

local fields = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local config, problem = parse_config(fields)
if problem then
  return problem
end
if config then
  return 0
end
if redis.call('EXISTS', KEYS[1]) == 1 then
  return corrupt(1, 'rate', 'is missing in a hash of other fields')
end

config = parse_config({ARGV[1], ARGV[2], ARGV[3], ARGV[4]})
local value_key, permits_key, places = pair_of(config)
local windowed = ARGV[5] == 'w'
local token
token, problem = recount(config, value_key, permits_key, places, tonumber(clock()), ARGV[6], windowed)
if problem then
  return problem
end
if token then
  return {'again', token}
end
-- What a lost limiter of that name left behind is not to end before its time.
local window = is_window(value_key, permits_key, windowed, config.interval)
redis.call('HSET', KEYS[1], 'rate', ARGV[1], 'interval', ARGV[2], 'keepAliveTime', ARGV[4], 'type', ARGV[3])
if ARGV[4] ~= '0' then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
give_ttl(value_key, permits_key, ARGV[4] ~= '0' and ARGV[4] or ARGV[3] == '1' and ARGV[2], window, config.interval)
return 1
