-- Lists the members in use, the newest first, or finds the newest of one client's. Changes nothing.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  '' or the token of the 'again' answer, or the place to continue from
--   2  how the identities of the client's members begin. It and what follows are left out if all members are to be listed
--   3  ms since the client was granted permits last, no more than that
--   4  '' or ms: members granted longer ago are left out
-- Returns
--   'again', token, members   the call must be repeated
--   'end', '', members
--   'end', place   of the client's member
--   NOTINIT, CORRUPT <key's number> <field> <why>

--- @include "rows" "limiter"

local place, mark = ARGV[1], ARGV[2]
if mark and place == '' then
  -- Newer ones are others'.
  place = digits(now - tonumber(ARGV[3])) .. ':0:'
end
local rows, first = rows_from(permits_key, place, 512)
local since = now - math.min(config.interval, tonumber(ARGV[4] or '') or math.huge)
local out = redis.call('ZCOUNT', permits_key, '-inf', digits(since))
local answer = {'end', ''}
for i = #rows, math.max(1, out - first + 1), -1 do
  if not mark then
    answer[#answer + 1] = rows[i]
  elseif string.sub(rows[i], 2, 1 + #mark) == mark then
    return {'end', place_of(permits_key, rows[i], first + i - 1)}
  end
end
if first > out then
  answer[1], answer[2] = 'again', place_of(permits_key, rows[1], first)
end
return answer
