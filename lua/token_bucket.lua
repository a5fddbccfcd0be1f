-- Takes tokens of a bucket for one or more requests, in order: each gets all that it asks for or nothing.
--
-- KEYS
--   1 tokens: how many are in the bucket, below 0 if some are borrowed
--   2 time: epoch seconds of the last refill
--   Without both the bucket is full.
-- ARGV
--   1  capacity  2  refill: tokens added each interval  3  interval in seconds
--   4  how many tokens may be borrowed  5  ms until an empty bucket is full
--   6, 7, ...  tokens, count, as for fixed_window
-- Returns
--   limit, free, taken, last, reset, waits..., as for fixed_window
--      limit: the capacity, with what may be borrowed
--      free: below 0 if more are borrowed
--      last: epoch seconds of the last refill
--      reset: ms until the bucket is full; 0 if it is
--   CORRUPT <key's number> <field> <why>

--- @include "bucket" "clock" "corrupt" "integer" "decide_requests"

local capacity, refill, interval, borrow = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now, peeks = tonumber(clock()), not ARGV[7]
local second = math.floor(now / 1000)

local tokens_text, last_text = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])
local tokens, last = integer(tokens_text), integer(last_text)
if tokens_text and not tokens then
  return corrupt(1, 'tokens', 'is no number: ' .. tokens_text)
end
if last_text and not last then
  return corrupt(2, 'time', 'is no number of seconds: ' .. last_text)
end

-- For a bucket that lost one of its keys only what is sure counts: no refill without its time, no tokens but refills.
local changed = not tokens or not last
-- -borrow could be -0, which is no integer's text.
tokens, last = math.min(tokens or last and 0 - borrow or capacity, capacity), last or second
local known = last
tokens, last = refilled(tokens, last, second, capacity, refill, interval)
local life = life_of(tokens, capacity, refill, interval, ARGV[5])
last = since(last, second, life)
changed = changed or last ~= known

local free = tokens + borrow
local taken, refused = decide_requests(free, capacity + borrow, 6)
tokens = tokens - taken

-- Returns the ms until so many tokens have been refilled.
local function wait_for(more)
  return math.min(longest, math.max(1, (last + math.ceil(more / refill) * interval) * 1000 - now))
end

local reset = tokens < capacity and wait_for(capacity - tokens) or 0

-- If a caller's clock is far ahead, no refill may ever come. The bucket is full nevertheless once the keys have gone.
local ahead, left = last > second, life
local write = taken > 0 or changed
if not write then
  left = redis.call('PTTL', KEYS[1])
  write = left < 0 or left > life or left ~= redis.call('PTTL', KEYS[2]) or (left < reset and not ahead)
end
if write then
  left = ahead and left >= 0 and math.max(1, math.min(left, life)) or life
  if not peeks then
    store(tokens, last, left)
  end
end
reset = ahead and math.min(reset, left + 1) or reset

local answer = {capacity + borrow, free, taken, last, reset}
for i, permits in ipairs(refused) do
  answer[5 + i] = math.min(wait_for(permits - tokens - borrow), ahead and left + 1 or longest)
end
return answer
