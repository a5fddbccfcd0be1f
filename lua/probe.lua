-- Writes in a way that changes nothing: an error if the server refuses the writes of decisions, because it is a replica or
-- full, or lacks replicas or its disk.
--
-- KEYS
--   1 a limiter's key, whatever it holds
-- ARGV
--   1 the command with which the limiter's decisions write, SET or ZADD
-- Returns
--   1

if ARGV[1] == 'ZADD' then
  redis.call('ZADD', KEYS[1], 'XX', 0, '')
else
  redis.call('SET', KEYS[1], '', redis.call('PTTL', KEYS[1]) == -2 and 'XX' or 'NX')
end
return 1
