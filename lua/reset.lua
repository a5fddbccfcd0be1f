-- Frees all permits in use of a limiter: this client's, if each has its own. Its rate and time to live stay.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  '' or the configuration for a limiter that has none, as for acquire
-- Returns
--   the number of keys that went
--   NOTINIT, CORRUPT <key's number> <field> <why>

--- @include "config_or_new"

local _, _, problem = config_or_new(redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime'), ARGV[1])
if problem then
  return problem
end
redis.call('HDEL', KEYS[1], 'lapsed')
return redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
