-- Takes permits of a fixed window for one or more requests, in order: each gets
-- all that it asks for or nothing.
--
-- KEYS
--   1 count of the permits taken in the window; it expires when that ends
-- ARGV
--   1  limit
--   2  window in ms
--   3, 4, ...  permits, count: that many requests for so many permits each.
--      Permits without a count: nothing is changed, and the answer is what one
--      request for so many would get
-- Returns
--   limit, free, taken, end, reset, waits...
--      free: free permits before
--      taken: the permits granted
--      end: epoch ms of the window's end
--      reset: ms until all permits are free again; 0 if they are
--      waits: for each run with a refused request, except those above the
--      limit: the ms until it could pass
--   CORRUPT <key's number> <field> <why>

--- @include "clock"
--- @include "corrupt"
--- @include "digits"
--- @include "integer"
--- @include "walk"

local limit, window, peeks = tonumber(ARGV[1]), tonumber(ARGV[2]), not ARGV[4]
local text = redis.call('GET', KEYS[1])
local count, left, endless = 0, 0, false
if text then
  count = integer(text)
  if not count or count < 0 then
    return corrupt(1, 'count', 'is no number of permits: ' .. text)
  end
  -- In its last millisecond, which Redis counts to 0, a window has ended.
  left = redis.call('PTTL', KEYS[1])
  if left == 0 then
    count, text = 0, nil
  elseif left < 0 or left > window then
    -- Without a time to live nothing would end the window: a program crashed before it
    -- set one, or the key was written by hand. With too long a one the clock went back.
    left, endless = window, true
  end
end

-- A counter that counts refusals too may have gone beyond the limit.
local free = math.max(0, limit - count)
local taken, refused = walk(free, limit, 3)
if taken > 0 and not text then
  left = window
end
if taken > 0 and not peeks then
  if text then
    redis.call('INCRBY', KEYS[1], digits(taken))
  else
    redis.call('SET', KEYS[1], digits(taken), 'PX', ARGV[2])
  end
end
if endless and not peeks then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
local answer = {limit, free, taken, tonumber(clock()) + left, count + taken > 0 and left or 0}
for i = 1, #refused do
  answer[5 + i] = left
end
return answer
