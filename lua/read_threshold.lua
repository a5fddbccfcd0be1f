-- Reads the limit that a log has, as a hash of thresholds in another slot says.
--
-- KEYS
--   1 thresholds: a hash, limits by the names of logs
-- ARGV
--   1  field of thresholds
-- Returns
--   the text of the field, nil where there is none

return redis.call('HGET', KEYS[1], ARGV[1])
