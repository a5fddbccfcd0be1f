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
--- @include "window"
--- @include "lifetime"
--- @include "idle_time"

local config = parse_config(redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime'))
local windowed = ARGV[1] == 'w'
local keep, keep_client = is_window(KEYS[2], KEYS[4], windowed), is_window(KEYS[3], KEYS[5], windowed)
-- By a clock that was set back the window in use would end later than it can.
if config and config.per_client and keep_client then
  end_window(KEYS[3], config.interval)
elseif config and not config.per_client and keep then
  end_window(KEYS[2], config.interval)
end
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
