-- Puts tokens back into a bucket, less those that have come back by themselves: a
-- bucket with more in it overflows sooner.
--
-- KEYS
--   1 tokens
--   2 time
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
local interval = tonumber(ARGV[3])
local tokens, last = integer(redis.call('GET', KEYS[1])), integer(redis.call('GET', KEYS[2]))
-- Refills come at whole intervals: a bucket out of step is one that was made anew.
if not tokens or not last or (last - ARGV[6]) % interval ~= 0 then
  return 0
end
local periods = math.max(0, math.floor((math.floor(clock() / 1000) - ARGV[6]) / interval))
local come = math.min(capacity, left + periods * ARGV[2])
local back = math.min(capacity, left + ARGV[4] + periods * ARGV[2]) - come
back = math.min(back, capacity - tokens)
if back > 0 then
  redis.call('INCRBY', KEYS[1], digits(back))
end
return math.max(0, back)
