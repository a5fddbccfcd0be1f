--- @include "window"

-- Gives value and permits that time to live, or takes theirs away.
local function give_ttl(value_key, permits_key, ttl, windowed)
  local window = is_window(value_key, permits_key, windowed)
  if ttl then
    if not window then
      redis.call('PEXPIRE', value_key, ttl)
    end
    redis.call('PEXPIRE', permits_key, ttl)
  else
    if not window then
      redis.call('PERSIST', value_key)
    end
    redis.call('PERSIST', permits_key)
  end
end
