-- Takes the time to live off all keys of a limiter, save a value that counts a
-- window.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  letters, or '': w, as for acquire
-- Returns
--   1 when a key had one, else 0

--- @include "window"

local windowed = ARGV[1] == 'w'
local keep, keep_client = is_window(KEYS[2], KEYS[4], windowed), is_window(KEYS[3], KEYS[5], windowed)
local had = 0
had = math.max(had, redis.call('PERSIST', KEYS[1]))
had = math.max(had, keep and 0 or redis.call('PERSIST', KEYS[2]))
had = math.max(had, keep_client and 0 or redis.call('PERSIST', KEYS[3]))
had = math.max(had, redis.call('PERSIST', KEYS[4]))
had = math.max(had, redis.call('PERSIST', KEYS[5]))
return had
