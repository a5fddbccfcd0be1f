-- Tells the types of a limiter's keys, to name the one that is wrong.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
-- Returns
--   five names of types, 'none' for a key that is missing

return {
  redis.call('TYPE', KEYS[1]).ok,
  redis.call('TYPE', KEYS[2]).ok,
  redis.call('TYPE', KEYS[3]).ok,
  redis.call('TYPE', KEYS[4]).ok,
  redis.call('TYPE', KEYS[5]).ok,
}
