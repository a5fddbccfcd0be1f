-- Gives permits of a fixed window back, or charges more of them, if it has not ended.
--
-- KEYS
--   1 count of the permits taken in the window
-- ARGV
--   1  permits that come back; below 0 those that are charged, free or not  2  epoch ms of their window's end
--   3  window in ms; '' of a calendar
-- Returns
--   1 if the window has not ended, otherwise 0, and nothing was done

--- @include "digits" "expiry" "integer"

local count, window, ends, left = integer(redis.call('GET', KEYS[1])), tonumber(ARGV[3]), expiry(KEYS[1])
-- A later window ends at least a window later, a second or more if a calendar makes it.
if not count or left < 1 or math.abs(ends - ARGV[2]) > math.min((window or 10) / 2, 5) then
  return 0
end
-- By a clock that was set back the window would end later; otherwise its end stays, by which all its grants are known.
-- Either write comes first, the RENAME without an effect: if memory is full, Redis refuses what begins with DECRBY.
if window and left > window then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
else
  redis.call('RENAME', KEYS[1], KEYS[1])
end
-- The count stays one that Lua holds exactly, and 0 or more.
redis.call('DECRBY', KEYS[1], digits(math.max(math.min(count, tonumber(ARGV[1])), count - 9007199254740991)))
return 1
