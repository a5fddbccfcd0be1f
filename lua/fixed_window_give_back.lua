-- Gives permits of a fixed window back, if it has not ended.
--
-- KEYS
--   1 count of the permits taken in the window
-- ARGV
--   1  permits
--   2  epoch ms at which their window ends, within 1 ms
-- Returns
--   1 where the permits were given back, else 0

--- @include "clock"
--- @include "digits"
--- @include "integer"

local count, left = integer(redis.call('GET', KEYS[1])), redis.call('PTTL', KEYS[1])
if not count or left < 1 or math.abs(tonumber(clock()) + left - tonumber(ARGV[2])) > 2 then
  return 0
end
redis.call('DECRBY', KEYS[1], digits(math.min(count, tonumber(ARGV[1]))))
return 1
