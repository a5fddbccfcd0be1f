-- Tells whether the value is one that Redisson before 3.13.3 counts a fixed
-- window by. Such a value has an end of its own, and nothing may move that or
-- fill the value before: all permits come back then. The releases after it give
-- the value the end that the configuration has; where windowed says that older
-- ones share the limiter, every value with an end counts a window.
local function is_window(value_key, permits_key, windowed)
  local left = redis.call('PTTL', value_key)
  if windowed or left < 0 then
    return left >= 0
  end
  local config, permits = redis.call('PTTL', KEYS[1]), redis.call('PTTL', permits_key)
  return (config < 0 or config > left + 1000) and (permits < 0 or permits > left + 1000)
end
