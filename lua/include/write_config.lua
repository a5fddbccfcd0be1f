--- @include "lifetime"

-- Writes the configuration with the fields new, which config was read from, and
-- starts its time to live. replaces says that there is another.
local function write_config(config, new, replaces)
  local key = KEYS[config.at + 1]
  redis.call('HSET', key, 'rate', new[1], 'interval', new[2], 'keepAliveTime', new[4], 'type', new[3],
    unpack(new[5] and {'default', new[5]} or {}))
  if replaces and not new[5] then
    redis.call('HDEL', key, 'default')
  end
  if config.keep > 0 then
    redis.call('PEXPIRE', key, lifetime(config.keep))
  elseif replaces then
    redis.call('PERSIST', key)
  end
end
