-- Gives all keys of a limiter one time to live.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  PEXPIRE or PEXPIREAT  2  ms
-- Returns
--   1 when a key was there, else 0

local there = 0
there = math.max(there, redis.call(ARGV[1], KEYS[1], ARGV[2]))
there = math.max(there, redis.call(ARGV[1], KEYS[2], ARGV[2]))
there = math.max(there, redis.call(ARGV[1], KEYS[3], ARGV[2]))
there = math.max(there, redis.call(ARGV[1], KEYS[4], ARGV[2]))
there = math.max(there, redis.call(ARGV[1], KEYS[5], ARGV[2]))
return there
