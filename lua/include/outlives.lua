--- @include "idle_time"

-- Tells whether a client's own pair lives for longer than it can be of use, as where
-- the clock has gone back.
local function outlives(config, value_key, permits_key)
  return config.per_client and
    math.max(redis.call('PTTL', value_key), redis.call('PTTL', permits_key)) > idle_time(config)
end
