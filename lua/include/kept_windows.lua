--- @include "window"

-- Tells of the limiter's value and of the client's own whether they count a window
-- that has an end, which it keeps. The one in use gets an end that a window can have:
-- by a clock that was set back it would end later.
local function kept_windows(config, windowed)
  local value, own = is_window(KEYS[2], KEYS[4], windowed), is_window(KEYS[3], KEYS[5], windowed)
  if config and config.per_client and own then
    end_window(KEYS[3], config.interval)
  elseif config and not config.per_client and value then
    end_window(KEYS[2], config.interval)
  end
  return value and redis.call('PTTL', KEYS[2]) ~= -1, own and redis.call('PTTL', KEYS[3]) ~= -1
end
