--- @include "recount"
--- @include "window"
--- @include "write_config"

-- Writes a configuration as write_config does, and takes the time to live off value
-- and permits: what was left behind is not to end before its time. A window keeps its
-- end. The caller is to keep_ttl. Returns whether the value is a window.
local function set_config(config, new, value_key, permits_key, windowed, replaces)
  local window = is_window(config, value_key, permits_key, windowed)
  write_config(config, new, replaces)
  if window then
    end_window(value_key, config.interval)
  else
    redis.call('PERSIST', value_key)
  end
  redis.call('PERSIST', permits_key)
  return window
end

-- Makes the configuration of a limiter that has none. What a lost limiter of that name
-- left behind is counted first. Returns as recount does: nil once it is made, with nil
-- and what set_config returns; a token; or nil, error reply.
local function make_config(config, new, value_key, permits_key, places, now, token, windowed)
  local more, problem = recount(config, value_key, permits_key, places, now, token, windowed)
  if more or problem then
    return more, problem
  end
  return nil, nil, set_config(config, new, value_key, permits_key, windowed)
end
