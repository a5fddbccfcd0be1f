-- Pauses a key for all programs, unless it is paused for longer.
--
-- KEYS
--   1 the pause: a string that expires when it ends
-- ARGV
--   1 for how many ms  2 why, for people who look
-- Returns
--   1 when it is paused for longer than before, otherwise 0
--   an error if the key holds something else

redis.call('GET', KEYS[1])
if tonumber(ARGV[1]) <= redis.call('PTTL', KEYS[1]) then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1])
return 1
