-- Merges members of one client that lie in one slice of the interval, a 64th of it counted from the epoch on: one member,
-- dated as the newest, stands for all. So no permit comes back early, and none more than a slice late. A group is merged as
-- a whole, if its members are there as they were last seen, or not at all.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
--   Without 3 and 5 for a limiter that is known to be of type Overall
-- ARGV
--   1  the highest rate of limiters whose members are left alone
--   2, 3, ...  a group each, the newest first: the member that is to stand for all, whose id no other call has, and they
-- Returns
--   rate, interval, the time in epoch ms, and for each group the slice in which it was merged; or 0, and for each of its
--   members the slice that it lies in, 0 if it is not there, or -permits if it has other permits now. Only the first two if
--   the rate is no higher than ARGV 1, only 0 if there is no limiter

--- @include "clock" "member" "unpack"

local call, sub = redis.call, string.sub
local fields = call('HMGET', KEYS[1], 'rate', 'interval', 'type')
local permits_key = KEYS[5] and (fields[3] == '1' and KEYS[5] or KEYS[4]) or KEYS[3]
local rate, interval = tonumber(fields[1] or ''), tonumber(fields[2] or '')
if not rate or not interval or interval <= 0 then
  return {0}
end
if rate <= tonumber(ARGV[1]) then
  return {rate, interval}
end
local answer = {rate, interval, tonumber(clock())}

local function slice_of(score)
  return score and math.floor(score * 64 / interval) or 0
end

-- Returns -permits of a member of which others have released some, 0 if it is not one of the newest.
local newest_rows
local function left_of(member)
  if not newest_rows then
    newest_rows = {}
    for _, row in ipairs(call('ZRANGE', permits_key, -256, -1)) do
      newest_rows[sub(row, 1, -5)] = row
    end
  end
  local row = newest_rows[sub(member, 1, -5)]
  return row and -permits_of(row) or 0
end

for g = 2, #ARGV do
  local group, slice, slices, names, place = ARGV[g], nil, {}, {}, {}
  local merged, oldest, n = sub(group, 1, 21), sub(group, 22, 42), #group / 21 - 1
  -- Mostly they are the last rows, but for what other calls and groups have added behind them. Then one command removes
  -- them. The set is never empty meanwhile, which would lose its time to live.
  local rows, first, last, found = call('ZRANGE', permits_key, -n - 8, -1), 1, 0, n
  while rows[first] and rows[first] ~= oldest do
    first = first + 1
  end
  last = math.min(first + n - 1, #rows)
  if table.concat(rows, '', first, last) ~= sub(group, 22) then
    first, last, found = math.huge, 0, 0
    for i, row in ipairs(rows) do -- those of one millisecond stand in another order
      place[row] = i
    end
    for i = 1, n do
      local at = place[sub(group, 21 * i + 1, 21 * i + 21)]
      if at then
        first, last, found = math.min(first, at), math.max(last, at), found + 1
      end
    end
  end
  if found == n and last - first < n and n < #rows then
    local scores = call('ZMSCORE', permits_key, rows[first], rows[last])
    if slice_of(scores[1]) == slice_of(scores[2]) then
      call('ZREMRANGEBYRANK', permits_key, first - #rows - 1, last - #rows - 1)
      call('ZADD', permits_key, scores[2], merged)
      slice = slice_of(scores[2])
    end
  end
  if not slice then
    for i = 1, n do
      names[i] = sub(group, 21 * i + 1, 21 * i + 21)
    end
    local scores = call('ZMSCORE', permits_key, unpack(names))
    local newest = scores[1]
    slice = slice_of(newest)
    for i = 1, n do
      slices[i] = slice_of(scores[i])
      if slices[i] ~= slices[1] then
        slice = 0
      elseif slice > 0 and tonumber(scores[i]) > tonumber(newest) then
        newest = scores[i]
      end
    end
    if slice > 0 then
      call('ZREM', permits_key, unpack(names, n < #rows and 1 or 2))
      call('ZADD', permits_key, newest, merged)
      call('ZREM', permits_key, names[1])
    else
      slice = slice_of(call('ZSCORE', permits_key, merged)) -- the call may have come before
    end
  end
  answer[#answer + 1] = slice
  for i = 1, slice == 0 and n or 0 do
    answer[#answer + 1] = slices[i] > 0 and slices[i] or left_of(names[i])
  end
end
return answer
