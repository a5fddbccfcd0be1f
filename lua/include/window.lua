--- @include "lifetime"

-- Reports whether Redisson before 3.13.3 counts a fixed window in the value. Such a value has an end of its own, an
-- interval away at most, and nothing may move that or fill the value before: all permits come back then. The releases
-- after it give the value the end that the configuration has, if any. A client's own value is a window only if config
-- says that older releases share the limiter; then every value is.
local function is_window(config)
  if config.per_client and not config.windowed then
    return false
  end
  local left = redis.call('PTTL', config.value_key)
  if config.windowed then
    return left ~= -2
  elseif left < 0 or left > config.interval then
    return false
  end
  local whole, permits = redis.call('PTTL', KEYS[config.at + 1]), redis.call('PTTL', config.permits_key)
  return (whole < 0 or whole > left + 1000) and (permits < 0 or permits > left + 1000)
end

-- Returns the ms until a window ends; one that has no end, or one further away than its interval, gets one.
local function end_window(config)
  local left = redis.call('PTTL', config.value_key)
  if left == -1 or left > config.interval then
    redis.call('PEXPIRE', config.value_key, lifetime(config.interval))
    left = config.interval
  end
  return left
end
