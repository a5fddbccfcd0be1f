-- Takes members of one attempt off a sliding log.
--
-- KEYS
--   1 log
-- ARGV
--   1  id of the attempt
--   2  number of the first member
--   3  how many
-- Returns
--   how many were there

local words = {}
for i = tonumber(ARGV[2]), ARGV[2] + ARGV[3] - 1 do
  words[#words + 1] = ARGV[1] .. ':' .. i
end
return redis.call('ZREM', KEYS[1], unpack(words))
