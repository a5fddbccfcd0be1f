--- @include "config_or_new" "clock"

-- Reads a limiter into config, value_key, permits_key and now. This is the text of a script's head: the script ends here
-- if there is no limiter or its configuration is damaged.
local config, _, problem = config_or_new(redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime'), '')
if problem then
  return problem
end
local value_key, permits_key = config.value_key, config.permits_key
local now = tonumber(clock())
