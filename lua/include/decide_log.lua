--- @include "corrupt"
--- @include "digits"
--- @include "walk"

-- Decides requests of a sliding log, as the text of a script, which returns the answer.
-- It works with what read_log reads. If peeks is true nothing is changed.
local window, id = tonumber(ARGV[2]), ARGV[4]
-- Digits, of a number that Lua holds exactly.
local limit = #limit_text <= 32 and string.find(limit_text, '^%d+$') and tonumber(limit_text)
if not limit or limit > 9007199254740991 then
  return corrupt(2, 'threshold', 'is no whole number of 0 or more: ' .. limit_text)
end
local now = tonumber(now_text)
local since = '(' .. digits(now - window)
local used = redis.call('ZCOUNT', KEYS[1], since, '+inf')
local out = rows - used

-- Returns the ms that the log lives for: a window after its last grant. If it
-- would be longer, the clock has gone back.
local function time_to_live(granted)
  local left = redis.call('PTTL', KEYS[1])
  if left >= 0 and left <= window and not (granted and left < window) then
    return left
  end
  if not peeks then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return window
end

-- Rows dated ahead, by a clock that has gone back since or by a caller's that is
-- fast, count from now on: for a window, as all do.
local newest = 0
if used > 0 then
  newest = tonumber(redis.call('ZRANGE', KEYS[1], digits(rows - 1), digits(rows - 1), 'WITHSCORES')[2]) or math.huge
end
if newest > now and not peeks then
  local ahead = redis.call('ZCOUNT', KEYS[1], '(' .. now_text, '+inf')
  local step = math.min(ahead, 256)
  local words = {}
  for _, member in ipairs(redis.call('ZRANGE', KEYS[1], digits(rows - step), digits(rows - 1))) do
    words[#words + 1] = now_text
    words[#words + 1] = member
  end
  redis.call('ZADD', KEYS[1], 'XX', unpack(words))
  if ahead > step then
    time_to_live(false)
    return {'again'}
  end
end

local found = 0
if ARGV[5] == '1' then
  local sum = 0
  for i = 6, #ARGV, 2 do
    sum = sum + tonumber(ARGV[i]) * tonumber(ARGV[i + 1])
  end
  while found < sum and redis.call('ZSCORE', KEYS[1], id .. ':' .. found) do
    found = found + 1
  end
end

local free, taken, refused
if found > 0 then
  -- Whatever the limit is by now, the walk that granted so many is this one.
  free = math.max(found, limit - used + found)
  taken, refused = walk(found, math.huge, 6)
else
  free = math.max(0, limit - used)
  taken, refused = walk(free, limit, 6)
end

-- What has run out no longer counts; it is dropped in bounded steps, faster than
-- it comes.
if out > 0 and not peeks then
  if taken > 0 and found == 0 then
--- @include "first_write"
    first_write(KEYS[1])
  end
  if used == 0 then
    redis.call('UNLINK', KEYS[1])
  else
    out = math.min(out, math.max(256, 2 * taken))
    redis.call('ZREMRANGEBYRANK', KEYS[1], 0, out - 1)
  end
  rows = rows - out
end

if taken > 0 and found == 0 then
  local words, added = {}, taken
  for i = 0, peeks and -1 or taken - 1 do
    words[#words + 1] = now_text
    words[#words + 1] = id .. ':' .. i
  end
  if not peeks then
    added = redis.call('ZADD', KEYS[1], 'NX', unpack(words))
  end
  rows, used, newest = rows + added, used + added, now
end
local left = window
if used > 0 then
  left = time_to_live(taken > 0)
end

-- The ms until a row of that date has run out, or the log has expired. One that is
-- dated ahead counts from now on.
local function wait_for(date)
  return math.min(left + 1, math.max(1, math.ceil(math.min(tonumber(date) or math.huge, now)) + window - now))
end

local reset = 0
if used > 0 then
  reset = wait_for(newest)
end
local answer = {limit, free, taken, 0, reset}
for _, permits in ipairs(refused) do
  if permits <= limit then
    local need = math.max(1, used + permits - limit)
    local rank = digits(rows - used + need - 1)
    answer[#answer + 1] = wait_for(redis.call('ZRANGE', KEYS[1], rank, rank, 'WITHSCORES')[2])
  end
end
return answer
