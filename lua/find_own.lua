-- Looks for the newest member that a client has in use. Changes nothing.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  what the identities of the client's members begin with
--   2  ms since the client was granted permits last, no more than that
--   3  '' or the place from which to look on
--   4  '' or ms: what was granted longer ago is left out
-- Returns
--   0 if there is none
--   'found', place   of the member
--   'again', place   the call is to be repeated
--   NOTINIT, CORRUPT <key's number> <field> <why>

--- @include "rows"

--- @include "limiter"
local place = ARGV[3]
if place == '' then
  -- Whatever is newer is of others.
  place = digits(now - tonumber(ARGV[2])) .. ':0:'
end
local rows, first = rows_from(permits_key, place, 512)
local since = now - math.min(config.interval, tonumber(ARGV[4]) or math.huge)
local out = redis.call('ZCOUNT', permits_key, '-inf', digits(since))
local mark, length = ARGV[1], 1 + #ARGV[1]
for i = #rows, math.max(1, out - first + 1), -1 do
  if string.sub(rows[i], 2, length) == mark then
    return {'found', place_of(permits_key, rows[i], first + i - 1)}
  end
end
if first > out then
  return {'again', place_of(permits_key, rows[1], first)}
end
return 0
