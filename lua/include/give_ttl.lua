--- @include "window"

-- Gives value and permits that time to live, or takes theirs away. A value that
-- counts a window keeps its own, which is never further away than the interval.
local function give_ttl(value_key, permits_key, ttl, window, interval)
  if window then
    end_window(value_key, interval)
  elseif ttl then
    redis.call('PEXPIRE', value_key, ttl)
  else
    redis.call('PERSIST', value_key)
  end
  if ttl then
    redis.call('PEXPIRE', permits_key, ttl)
  else
    redis.call('PERSIST', permits_key)
  end
end
