--- @include "config"

-- Reads the configuration: the table of parse_config, or nil with an error
-- reply.
local function read_config(key)
  local config, problem = parse_config(redis.call('HMGET', key, 'rate', 'interval', 'type', 'keepAliveTime'))
  if not config and not problem then
    problem = redis.error_reply('NOTINIT no rate is set')
  end
  return config, problem
end
