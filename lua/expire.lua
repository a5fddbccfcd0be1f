-- Gives all keys of a limiter one time to live, save a value that counts a
-- window: that ends by itself.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  PEXPIRE or PEXPIREAT  2  ms  3  letters, or '': w, as for acquire
-- Returns
--   1 when a key was there, else 0

--- @include "window"

local windowed = ARGV[3] == 'w'
local keep, keep_client = is_window(KEYS[2], KEYS[4], windowed), is_window(KEYS[3], KEYS[5], windowed)
local there = 0
there = math.max(there, redis.call(ARGV[1], KEYS[1], ARGV[2]))
there = math.max(there, keep and 1 or redis.call(ARGV[1], KEYS[2], ARGV[2]))
there = math.max(there, keep_client and 1 or redis.call(ARGV[1], KEYS[3], ARGV[2]))
there = math.max(there, redis.call(ARGV[1], KEYS[4], ARGV[2]))
there = math.max(there, redis.call(ARGV[1], KEYS[5], ARGV[2]))
return there
