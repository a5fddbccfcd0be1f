-- Lists what is noted of clients, those noted last at the end. Changes nothing.
--
-- KEYS
--   1 names of clients
-- ARGV
--   1  '' or the token of the 'again' answer
-- Returns
--   'again', token, what is noted of each of 512 clients   the call is to be repeated
--   'end', '', the same of those that are left

--- @include "clock"

-- Who is noted meanwhile moves up and is told twice; none is left out, but of those that
-- share a millisecond with 511 others.
local from = ARGV[1]
if from == '' then
  from = '(' .. clock()
end
local answer = {'end', ''}
local rows = redis.call('ZRANGEBYSCORE', KEYS[1], from, '+inf', 'WITHSCORES', 'LIMIT', 0, 512)
for i = 1, #rows, 2 do
  answer[#answer + 1] = rows[i]
end
if #rows == 1024 then
  local last = rows[1024]
  answer[1], answer[2] = 'again', last == from and '(' .. last or last
end
return answer
