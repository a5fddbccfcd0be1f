--- @include "lifetime"

-- Makes a value that is missing. windowed says that it counts a fixed window,
-- which begins now.
local function make_value(value_key, free, windowed, interval)
  if windowed then
    redis.call('SET', value_key, digits(free), 'PX', lifetime(interval))
  else
    redis.call('SET', value_key, digits(free))
  end
end
