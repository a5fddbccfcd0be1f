-- Lists the members in use, the newest first. Changes nothing.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  '' or the token of the 'again' answer
-- Returns
--   'again', token, members   the call is to be repeated
--   'end', '', members
--   NOTINIT, CORRUPT <key's number> <field> <why>

--- @include "rows"

--- @include "limiter"
local rows, first = rows_from(permits_key, ARGV[1], 512)
local out = redis.call('ZCOUNT', permits_key, '-inf', digits(now - config.interval))
local answer = {'end', ''}
for i = #rows, math.max(1, out - first + 1), -1 do
  answer[#answer + 1] = rows[i]
end
if first > out then
  answer[1], answer[2] = 'again', place_of(permits_key, rows[1], first)
end
return answer
