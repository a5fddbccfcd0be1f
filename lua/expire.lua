-- Gives all keys of a limiter one time to live.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  PEXPIRE or PEXPIREAT  2  ms
-- Returns
--   1 when a key was there, else 0

--- @include "clock"
--- @include "window"

local ends = tonumber(ARGV[2])
if ARGV[1] == 'PEXPIRE' then
  ends = ends + tonumber(clock())
end
-- Looked at before any end is changed.
local early = is_window(KEYS[2], KEYS[4]) and redis.call('PTTL', KEYS[2]) + tonumber(clock()) < ends
local early_client = is_window(KEYS[3], KEYS[5]) and redis.call('PTTL', KEYS[3]) + tonumber(clock()) < ends

local there = 0
there = math.max(there, redis.call(ARGV[1], KEYS[1], ARGV[2]))
there = math.max(there, early and 1 or redis.call(ARGV[1], KEYS[2], ARGV[2]))
there = math.max(there, early_client and 1 or redis.call(ARGV[1], KEYS[3], ARGV[2]))
there = math.max(there, redis.call(ARGV[1], KEYS[4], ARGV[2]))
there = math.max(there, redis.call(ARGV[1], KEYS[5], ARGV[2]))
return there
