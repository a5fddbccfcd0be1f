-- Makes one command about one key; as a script, so that a client that reads from replicas asks the master.
--
-- KEYS
--   1 any key
-- ARGV
--   1  the command  2, 3, ...  what follows its key
-- Returns
--   what the command answers

--- @include "unpack"

return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))
