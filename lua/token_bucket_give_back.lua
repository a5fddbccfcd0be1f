-- Puts tokens back into a bucket, less those that have come back by themselves: a
-- bucket with more in it overflows sooner.
--
-- KEYS
--   1 tokens
-- ARGV
--   1  capacity
--   2  refill: tokens added each interval
--   3  interval in seconds
--   4  tokens to be put back
--   5  how many were left when they had been taken
--   6  epoch seconds of the last refill then
-- Returns
--   how many were put back

--- @include "clock"
--- @include "digits"
--- @include "integer"

local capacity, left = tonumber(ARGV[1]), tonumber(ARGV[5])
local tokens = integer(redis.call('GET', KEYS[1]))
if not tokens then
  return 0
end
local periods = math.max(0, math.floor((math.floor(clock() / 1000) - ARGV[6]) / ARGV[3]))
local come = math.min(capacity, left + periods * ARGV[2])
local back = math.min(capacity, left + ARGV[4] + periods * ARGV[2]) - come
back = math.min(back, capacity - tokens)
if back > 0 then
  redis.call('INCRBY', KEYS[1], digits(back))
end
return math.max(0, back)
