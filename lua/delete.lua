-- Removes a limiter, without holding the server up for a large permits set.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
-- Returns
--   the number of keys that were there

return redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
