--- @include "expiry"

-- Returns acquire's answer as far as its waits, and the permits that are free now. taken are the permits granted; found
-- is nil or those that an earlier run was granted; ends is nil or the ms until a window ends.
local function figures_of(config, state, taken, found, ends, now)
  local before, left = state.free, state.free - taken
  if found then
    before, left = state.free + found, state.free
  end
  local reset = 0
  if ends and left < config.rate then
    reset = ends
  elseif taken > 0 then
    reset = config.interval
  elseif state.newest then
    reset = state.newest + config.interval - now
  end
  local answer = {config.rate, before, taken, config.interval, reset, math.max(0, config.keep)}
  if config.windowed then
    answer[7] = expiry(config.value_key) or now + ends
  end
  return answer, left
end
