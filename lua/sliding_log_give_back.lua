-- Takes members of one call off a sliding log.
--
-- KEYS
--   1 log
-- ARGV
--   1  id of the call  2  number of the first member  3  how many  4  window in ms
-- Returns
--   how many were there

--- @include "unpack"

local words = {}
for i = tonumber(ARGV[2]), ARGV[2] + ARGV[3] - 1 do
  words[#words + 1] = ARGV[1] .. ':' .. i
end
local gone = redis.call('ZREM', KEYS[1], unpack(words))
if gone > 0 then
  local left = redis.call('PTTL', KEYS[1])
  if left == -1 or left > tonumber(ARGV[4]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
  end
end
return gone
