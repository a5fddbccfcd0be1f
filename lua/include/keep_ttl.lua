--- @include "digits"

-- Puts the configuration's time to live on the value and the permits too.
-- renew starts the keep-alive time anew, as requests do. A client's own pair
-- goes an interval after its last use at the latest: by then all is free. The
-- end of a window stays.
local function keep_ttl(config, value_key, permits_key, renew, window)
  local ttl
  if config.keep > 0 and renew then
    ttl = config.keep
    redis.call('PEXPIRE', KEYS[1], digits(ttl))
  else
    ttl = redis.call('PTTL', KEYS[1])
    if ttl == 0 then
      ttl = 1
    end
    if config.per_client and config.keep <= 0 and (ttl < 0 or ttl > config.interval) then
      ttl = math.max(config.interval, 1)
    end
  end
  if ttl > 0 then
    if not window then
      redis.call('PEXPIRE', value_key, digits(ttl))
    end
    redis.call('PEXPIRE', permits_key, digits(ttl))
  end
end
