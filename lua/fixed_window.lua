-- Takes permits of a fixed window for one or more requests, in order: each gets all that it asks for or nothing.
--
-- KEYS
--   1 count of the permits taken in the window; it expires when that ends
-- ARGV
--   1  limit  2  window in ms; of a calendar the epoch ms at which windows begin and end, in order
--   3, 4, ...  permits, count: that many requests for so many permits each. Permits without a count: nothing is changed,
--      and the answer is what one request for so many would get
-- Returns
--   limit, free, taken, end, reset, waits...
--      free: free permits before, 0 or more; if nothing is changed, below 0 if more are used than the limit
--      taken: the permits granted
--      end: epoch ms of the window's end
--      reset: ms until all permits are free again; 0 if they are
--      waits: for each run with a refused request, except those above the limit: the ms until it could pass
--   'again', now   nothing was done: the server's clock, in epoch ms, is in no window of ARGV 2
--   CORRUPT <key's number> <field> <why>

--- @include "calendar" "corrupt" "digits" "expiry" "integer" "decide_requests"

local limit, window, peeks = tonumber(ARGV[1]), tonumber(ARGV[2]), not ARGV[4]
local text = redis.call('GET', KEYS[1])
local count, expires, left, endless, ends = 0, nil, 0, false, nil
if text then
  count = integer(text)
  if not count or count < 0 then
    return corrupt(1, 'count', 'is no number of permits: ' .. text)
  end
  expires, left = expiry(KEYS[1])
end
-- A calendar's window is looked up after that: if it ends meanwhile, the grant counts in the next.
if not window then
  local now = clock()
  ends = end_of_window(ARGV[2], tonumber(now))
  if not ends then
    return {'again', now}
  end
  window = ends - now
end
-- In its last millisecond, which Redis counts to 0, a window has ended.
if left == 0 then
  count, text = 0, nil
elseif left < 0 or left > window then
  -- Without a time to live nothing would end the window: a program crashed before it set one, or the key was written by
  -- hand. With too long a one the clock went back, or a program that knows no calendar began a calendar's window.
  left, endless = window, true
end

-- A counter that counts refusals too, or what was used beyond a reservation, may have gone beyond the limit.
local free = math.max(peeks and -count or 0, limit - count)
local taken, refused = decide_requests(free, limit, 3)
left = taken > 0 and not text and window or left
if taken > 0 and text and not peeks then
  redis.call('INCRBY', KEYS[1], digits(taken))
elseif taken > 0 and not peeks then
  redis.call('SET', KEYS[1], digits(taken), ends and 'PXAT' or 'PX', digits(ends or window))
end
if endless and not peeks then
  redis.call(ends and 'PEXPIREAT' or 'PEXPIRE', KEYS[1], digits(ends or window))
end
expires = not peeks and (endless or not text) and expiry(KEYS[1]) or text and not endless and expires or ends or clock() + left
local answer = {limit, free, taken, expires, count + taken > 0 and left or 0}
for i = 1, #refused do
  answer[5 + i] = left
end
return answer
