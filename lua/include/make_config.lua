--- @include "recount"
--- @include "window"
--- @include "give_ttl"

-- Makes the configuration of a limiter that has none, with the fields new, which
-- config was read from. What a lost limiter of that name left behind is counted
-- first. Returns as recount does: nil where it is made; a token; or nil, error reply.
local function make_config(config, new, value_key, permits_key, places, now, token, windowed)
  local more, problem = recount(config, value_key, permits_key, places, now, token, windowed)
  if more or problem then
    return more, problem
  end
  local window = is_window(value_key, permits_key, windowed, config.interval)
  redis.call('HSET', KEYS[1], 'rate', new[1], 'interval', new[2], 'keepAliveTime', new[4], 'type', new[3],
    unpack(new[5] and {'default', new[5]} or {}))
  give_ttl(value_key, permits_key, nil, window, config.interval)
  return nil
end
