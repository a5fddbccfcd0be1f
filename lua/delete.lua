-- Removes keys, without holding the server up for large ones.
--
-- KEYS
--   1 any key, and up to four more
-- ARGV
-- Returns
--   the number of keys that were there

return redis.call('UNLINK', KEYS[1], KEYS[2] or KEYS[1], KEYS[3] or KEYS[1], KEYS[4] or KEYS[1], KEYS[5] or KEYS[1])
