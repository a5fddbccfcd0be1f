--- @include "unpack" "lifetime"

-- Makes a value that is missing. One that counts a window begins it.
local function make_value(config, free)
  redis.call('SET', config.value_key, digits(free), unpack(config.windowed and {'PX', lifetime(config.interval)} or {}))
end
