-- Notes a client's name, and removes names that were not noted for long.
--
-- KEYS
--   1 names of clients
-- ARGV
--   1  what is noted of the client  2  ms for which it should be known
-- Returns
--   1

--- @include "clock" "digits" "unpack"

local now = clock()
redis.call('ZADD', KEYS[1], digits(tonumber(now) + tonumber(ARGV[2])), ARGV[1])
local gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 256)
if gone[1] then
  redis.call('ZREM', KEYS[1], unpack(gone))
end
-- The 10000 that were noted last are enough to look through.
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -10001)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
