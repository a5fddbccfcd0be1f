--- @include "member" "first_write" "set_number"

-- Takes permits off a member, which keeps its identity and its time. It goes when none are left on it.
local function take_off(permits_key, member, permits)
  local rest = permits_of(member) - permits
  if rest > 0 then
    first_write(permits_key, true)
    local score = redis.call('ZSCORE', permits_key, member)
    redis.call('ZADD', permits_key, score, with_permits(member, rest))
  end
  redis.call('ZREM', permits_key, member)
end

-- Takes permits off a member and adds them to the value, if there is one; a window does not fill before its end.
local function return_permits(config, member, permits, value, window)
  take_off(config.permits_key, member, permits)
  local free = value and math.min(config.rate, value + permits)
  if redis.call('EXISTS', config.permits_key) == 0 and not window then
    free = config.rate
  end
  if value then
    set_number(config.value_key, value, free)
  end
end
