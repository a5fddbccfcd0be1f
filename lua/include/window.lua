-- Tells whether the value is one that Redisson before 3.13.3 counts a fixed
-- window by. Such a value has an end of its own, and nothing may move it: all
-- permits come back then. The releases after it give the value the end that the
-- configuration has.
local function is_window(value_key, permits_key)
  local left = redis.call('PTTL', value_key)
  if left <= 0 then
    return false
  end
  local config, permits = redis.call('PTTL', KEYS[1]), redis.call('PTTL', permits_key)
  return (config < 0 or config > left + 1000) and (permits < 0 or permits > left + 1000)
end
