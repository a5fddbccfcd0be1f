-- Gives permits of a fixed window back, if it has not ended.
--
-- KEYS
--   1 count of the permits taken in the window
-- ARGV
--   1  permits
--   2  epoch ms of their window's end
--   3  window in ms; '' of a calendar
-- Returns
--   1 if the permits were given back, otherwise 0

--- @include "clock"
--- @include "digits"
--- @include "integer"

local count, left, window = integer(redis.call('GET', KEYS[1])), redis.call('PTTL', KEYS[1]), tonumber(ARGV[3])
-- A later window ends at least a window later, or a day if a calendar makes it. TIME and PTTL
-- may be a few ms apart.
if not count or left < 1 or math.abs(clock() + left - ARGV[2]) > math.min((window or 10) / 2, 5) then
  return 0
end
-- By a clock that was set back the window would end later; and the ms between PTTL and
-- PEXPIRE must not add up. This comes first, as Redis refuses a script that begins with
-- DECRBY if memory is full.
if window then
  redis.call('PEXPIRE', KEYS[1], digits(math.max(1, math.min(left, ARGV[2] - clock(), window))))
else
  redis.call('PEXPIREAT', KEYS[1], digits(math.min(ARGV[2], clock() + left)))
end
redis.call('DECRBY', KEYS[1], digits(math.min(count, tonumber(ARGV[1]))))
return 1
