-- Takes permits of a sliding log for one or more requests, in order: each gets all that it asks for or nothing.
--
-- KEYS
--   1 log: a sorted set, a member for each permit taken, its score the epoch ms
--   2 thresholds: a hash, limits by the names of logs. Left out if ARGV[1] is the limit
-- ARGV
--   1  limit if thresholds has none  2  window in ms  3  field of thresholds
--   4  id of the call, which begins the names of its members  5  '1' if the call may have run already, otherwise ''
--   6, 7, ...  permits, count, as for fixed_window
-- Returns
--   limit, free, taken, 0, reset, waits..., as for fixed_window; the members of what was taken are id:0, id:1, ...
--   'again'   the call must be repeated; nothing was granted
--   CORRUPT <key's number> <field> <why>

local limit_text = KEYS[2] and redis.call('HGET', KEYS[2], ARGV[3]) or ARGV[1]
local time = redis.call('TIME')
local now_text = time[1] .. string.sub('00000' .. time[2], -6, -4)
local rows = redis.call('ZCARD', KEYS[1])

-- One permit, if the log has it and nothing in it has run out or is dated ahead: the common case, with the fewest
-- commands. Arithmetic turns text into numbers, without a call.
if #ARGV == 7 and ARGV[6] == '1' and ARGV[7] == '1' and ARGV[5] == '' and
    #limit_text <= 15 and string.find(limit_text, '^[1-9]%d*$') and rows < limit_text + 0 then
  local window, newest, used = ARGV[2] + 0, 0, 0
  if rows > 0 then
    newest = tonumber(redis.call('ZRANGE', KEYS[1], rows - 1, rows - 1, 'WITHSCORES')[2]) or math.huge
    used = redis.call('ZCOUNT', KEYS[1], '(' .. string.format('%.0f', now_text - window), '+inf')
  end
  if rows == used and newest <= now_text + 0 then
    redis.call('ZADD', KEYS[1], 'NX', now_text, ARGV[4] .. ':0')
    if redis.call('PTTL', KEYS[1]) ~= window then
      redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
    return {limit_text + 0, limit_text - used, 1, 0, window}
  end
end

--- @include "corrupt" "digits" "decide_requests" "unpack"

local window, id, peeks = tonumber(ARGV[2]), ARGV[4], not ARGV[7]
local limit = #limit_text <= 32 and string.find(limit_text, '^%d+$') and tonumber(limit_text)
if not limit or limit > 9007199254740991 then
  return corrupt(2, 'threshold', 'is no whole number of 0 or more: ' .. limit_text)
end
local now = tonumber(now_text)
local used = redis.call('ZCOUNT', KEYS[1], '(' .. digits(now - window), '+inf')
local out = rows - used

-- Returns the ms that the log lives for: a window after its last grant. If it would be longer, the clock has gone back.
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

-- Rows dated ahead, by a clock that has gone back since or by a caller's that is fast, count from now on, for a window.
local last = used > 0 and redis.call('ZRANGE', KEYS[1], digits(rows - 1), digits(rows - 1), 'WITHSCORES') or {'', '0'}
local newest = tonumber(last[2]) or math.huge
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

local found, free = 0, math.max(0, limit - used)
local taken, refused = decide_requests(free, limit, 6)
-- What an earlier attempt has taken, or this one: if the request came twice, the newest row may be its own.
if not peeks and (ARGV[5] == '1' or string.sub(last[1], 1, #id + 1) == id .. ':') then
  local sum = 0
  for i = 6, #ARGV, 2 do
    sum = sum + tonumber(ARGV[i]) * tonumber(ARGV[i + 1])
  end
  while found < sum and redis.call('ZSCORE', KEYS[1], id .. ':' .. found) do
    found = found + 1
  end
end
if found > 0 then
  -- Whatever the limit is by now, the walk that granted so many is this one.
  free = math.max(found, limit - used + found)
  taken, refused = decide_requests(found, math.huge, 6)
end

-- What has run out no longer counts; it is dropped in bounded steps, faster than it comes.
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
  local added = taken
  if not peeks then
    local words = {}
    for i = 0, taken - 1 do
      words[#words + 1] = now_text
      words[#words + 1] = id .. ':' .. i
    end
    added = redis.call('ZADD', KEYS[1], 'NX', unpack(words))
  end
  rows, used, newest = rows + added, used + added, now
end
local left = used > 0 and time_to_live(taken > 0) or window

-- Returns the ms until a row of that time has run out, or the log has expired. A row dated ahead counts from now on.
local function wait_for(date)
  return math.min(left + 1, math.max(1, math.ceil(math.min(tonumber(date) or math.huge, now)) + window - now))
end

local answer = {limit, free, taken, 0, used > 0 and wait_for(newest) or 0}
for _, permits in ipairs(refused) do
  if permits <= limit then
    local need = math.max(1, used + permits - limit)
    local rank = digits(rows - used + need - 1)
    answer[#answer + 1] = wait_for(redis.call('ZRANGE', KEYS[1], rank, rank, 'WITHSCORES')[2])
  end
end
return answer
