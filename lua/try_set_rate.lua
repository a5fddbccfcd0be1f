-- Gives a limiter its rate, unless it has one. All fields are written or none.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1 rate  2 interval in ms  3 type  4 keepAliveTime in ms, 0 for none
--   5 letters, or '': w, as for acquire
-- Returns
--   1 when the rate was set, 0 when there was one
--   CORRUPT <key's number> <field> <why>

--- @include "config"
--- @include "pair"
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
redis.call('HSET', KEYS[1], 'rate', ARGV[1], 'interval', ARGV[2], 'keepAliveTime', ARGV[4], 'type', ARGV[3])
if ARGV[4] ~= '0' then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
-- What a lost limiter of that name left behind is not to end before its time.
local value_key, permits_key = pair_of(parse_config({ARGV[1], ARGV[2], ARGV[3], ARGV[4]}))
give_ttl(value_key, permits_key, ARGV[4] ~= '0' and ARGV[4] or ARGV[3] == '1' and ARGV[2],
  is_window(value_key, permits_key, ARGV[5] == 'w', tonumber(ARGV[2])))
return 1
