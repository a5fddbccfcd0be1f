--- @include "lifetime" "idle_time"

-- Puts the configuration's time to live on the value and the permits too. renew restarts the keep-alive time, as requests
-- do. A client's own pair goes when its idle time is over, at the latest. The end of a window stays; the rest outlives it,
-- or the next call could not tell that the value is a window.
local function keep_ttl(config, renew, window)
  local ttl
  if config.keep > 0 and renew then
    ttl = config.keep
    if window and not config.windowed then
      ttl = math.max(ttl, redis.call('PTTL', config.value_key) + 2000)
    end
    redis.call('PEXPIRE', KEYS[config.at + 1], lifetime(ttl))
  else
    ttl = redis.call('PTTL', KEYS[config.at + 1])
    if config.per_client and (ttl < 0 or ttl > idle_time(config)) then
      ttl = idle_time(config)
    end
  end
  if ttl >= 0 then
    if not window then
      redis.call('PEXPIRE', config.value_key, lifetime(ttl))
    end
    redis.call('PEXPIRE', config.permits_key, lifetime(ttl))
  end
end
