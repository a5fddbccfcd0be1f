--- @include "expiry"

-- Returns acquire's answer as far as its waits, with nothing found, and the permits that are free now. taken are the
-- permits granted; found is nil or those that an earlier run was granted; ends is nil or the ms until a window ends. holds
-- says that they need not be in use for an interval, and that the state's newest row is the newest of theirs, too.
local function figures_of(config, state, taken, found, ends, holds, now)
  local before, left = state.free, state.free - taken
  if found then
    before, left = state.free + found, state.free
  end
  local reset = ends and left < config.rate and ends or taken > 0 and not holds and config.interval or
    state.newest and state.newest + config.interval - now or 0
  local answer = {config.rate, before, taken, config.interval, reset, math.max(0, config.keep), 0}
  if config.windowed then
    answer[8] = expiry(config.value_key) or now + ends
  end
  return answer, left
end
