-- Gives all keys of a limiter one time to live, save a value that counts a
-- window: that ends by itself.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  PEXPIRE or PEXPIREAT  2  ms  3  letters, or '': w, as for acquire
-- Returns
--   1 when a key was there, else 0

--- @include "clock"
--- @include "window"

-- A moment that has passed would have Redis free the keys at once, however much
-- that is.
local passed = ARGV[1] == 'PEXPIREAT' and tonumber(ARGV[2]) <= tonumber(clock())
local function expire(key)
  if passed then
    return redis.call('UNLINK', key)
  end
  return redis.call(ARGV[1], key, ARGV[2])
end

local windowed = ARGV[3] == 'w'
local keep, keep_client = is_window(KEYS[2], KEYS[4], windowed), is_window(KEYS[3], KEYS[5], windowed)
local there = 0
there = math.max(there, expire(KEYS[1]))
there = math.max(there, keep and 1 or expire(KEYS[2]))
there = math.max(there, keep_client and 1 or expire(KEYS[3]))
there = math.max(there, expire(KEYS[4]))
there = math.max(there, expire(KEYS[5]))
return there
