-- Takes the time to live off a limiter, save a value that counts a window. A
-- client's own keys keep going when its idle time is over.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  letters, or '': w, as for acquire
-- Returns
--   1 when the limiter had one, else 0

--- @include "config"
--- @include "kept_windows"
--- @include "lifetime"
--- @include "idle_time"

local config = parse_config(redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime'))
local keep, keep_client = kept_windows(config, ARGV[1] == 'w')
local had = 0
had = math.max(had, redis.call('PERSIST', KEYS[1]))
had = math.max(had, keep and 0 or redis.call('PERSIST', KEYS[2]))
had = math.max(had, redis.call('PERSIST', KEYS[4]))
if config and config.per_client then
  local ttl = lifetime(idle_time(config))
  if not keep_client then
    redis.call('PEXPIRE', KEYS[3], ttl)
  end
  redis.call('PEXPIRE', KEYS[5], ttl)
end
return had
