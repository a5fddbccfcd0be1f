-- Tells how long a limiter lives; as a script, so that a client that reads from
-- replicas asks the master.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
-- Returns
--   time to live in ms, -1 where it has no end, -2 where there is no limiter

return redis.call('PTTL', KEYS[1])
