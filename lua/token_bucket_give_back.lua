-- Puts tokens back into a bucket, or takes more whether it has them or not; not what has come back by itself since.
--
-- KEYS
--   1 tokens  2 time
-- ARGV
--   1  capacity  2  refill: tokens added each interval  3  interval in seconds
--   4  tokens to be put back; below 0 to be taken  5  how many were left when they had been taken  6  epoch seconds of the last refill then
--   7  ms since, by the caller's clock  8  ms until an empty bucket is full
-- Returns
--   how many were put back; below 0 if they were taken

--- @include "bucket" "clock" "integer"

local capacity, refill, interval = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local left, began = tonumber(ARGV[5]), tonumber(ARGV[6])
local tokens, last = integer(redis.call('GET', KEYS[1])), integer(redis.call('GET', KEYS[2]))
-- Refills come at whole intervals: a bucket out of step was set up again, or its clock has gone back and been set right.
if not tokens or not last or last < began or (last - began) % interval ~= 0 then
  return 0
end
-- The refills since are the most that a clock or the bucket shows: the server's clock may have gone back.
local second = math.floor(clock() / 1000)
local passed = math.max(second - began, last - began, math.floor(ARGV[7] / 1000))
local come = math.floor(passed / interval) * refill
tokens, last = refilled(tokens, last, second, capacity, refill, interval)
local back = math.min(capacity, left + ARGV[4] + come) - math.min(capacity, left + come)
-- Lua holds no number exactly that is smaller.
back = math.max(math.min(back, capacity - tokens), -9007199254740991 - tokens)
if back == 0 then
  return 0
end
-- The keys' end tells by the tokens that are in Redis whether the clock has gone back.
last = since(last, second, life_of(tokens, capacity, refill, interval, ARGV[8]))
tokens = tokens + back
local life = life_of(tokens, capacity, refill, interval, ARGV[8])
-- Redis would refuse a script that begins with SET if memory is full.
redis.call('PEXPIRE', KEYS[1], digits(life))
store(tokens, last, life)
return back
