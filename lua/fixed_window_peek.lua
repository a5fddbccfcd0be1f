-- Tells what fixed_window would answer, and changes nothing.
--
-- KEYS
--   1 count of the permits taken in the window; it expires when that ends
-- ARGV
--   1  limit
--   2  window in ms
--   3, 4, ...  permits, count: that many requests for so many permits each
-- Returns
--   limit, free, taken, end, reset, waits...
--      free: free permits before
--      taken: the permits granted
--      end: epoch ms at which the window ends
--      reset: ms until all permits are free again; 0 where they are
--      waits: for each run of which a request was refused, save those above the
--      limit: the ms until it could pass
--   CORRUPT <key's number> <field> <why>

--- @include "clock"
--- @include "corrupt"
--- @include "integer"
--- @include "walk"

local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local text = redis.call('GET', KEYS[1])
local count, left = 0, 0
if text then
  count = integer(text)
  if not count or count < 0 then
    return corrupt(1, 'count', 'is no number of permits: ' .. text)
  end
  left = redis.call('PTTL', KEYS[1])
  if left == 0 then
    count, text = 0, nil
  elseif left < 0 or left > window then
    left = window
  end
end

local free = math.max(0, limit - count)
local taken, refused = walk(free, limit, 3)
if taken > 0 and not text then
  left = window
end
local reset = 0
if count + taken > 0 then
  reset = left
end
local answer = {limit, free, taken, tonumber(clock()) + left, reset}
for i = 1, #refused do
  answer[5 + i] = left
end
return answer
