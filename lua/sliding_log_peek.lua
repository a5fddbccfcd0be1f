-- Tells what sliding_log would answer to one request for permits, and changes
-- nothing.
--
-- KEYS
--   1 log
-- ARGV
--   1  limit
--   2  window in ms
--   3  permits
-- Returns
--   limit, free, taken, 0, reset, waits...   as sliding_log does

--- @include "clock"
--- @include "digits"

local limit, window, permits = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now = tonumber(clock())
local rows = redis.call('ZCARD', KEYS[1])
local used = redis.call('ZCOUNT', KEYS[1], '(' .. digits(now - window), '+inf')
local free = math.max(0, limit - used)
local taken = permits <= free and permits or 0

local left = redis.call('PTTL', KEYS[1])
if left < 0 or left > window or taken > 0 then
  left = window
end

-- Returns the ms until the row of that rank has run out, or the log has expired. One
-- that is dated ahead counts from now on.
local function wait_for(rank)
  local date = tonumber(redis.call('ZRANGE', KEYS[1], digits(rank), digits(rank), 'WITHSCORES')[2]) or math.huge
  return math.min(left + 1, math.max(1, math.ceil(math.min(date, now)) + window - now))
end

local reset = 0
if taken > 0 then
  reset = window
elseif used > 0 then
  reset = wait_for(rows - 1)
end
local answer = {limit, free, taken, 0, reset}
if taken == 0 and permits <= limit then
  answer[6] = wait_for(rows + permits - limit - 1)
end
return answer
