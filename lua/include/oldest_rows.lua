--- @include "recover_leaked" "unpack"

-- Looks for the rows that show when the refused requests could pass. Mostly it is the oldest alone. If that one has too
-- few permits for the largest of them more rows are looked at, and then leaked permits show: see recover_leaked; with
-- audit always. Something is in use; taken are the permits granted. Returns the rows in order; or nil, error reply.
local function oldest_rows(config, state, taken, refused, audit)
  local oldest, largest = state.oldest[1], math.max(0, unpack(refused))
  local permits = permits_of(oldest)
  if not permits then
    return sum_of({oldest}, config.permits_place) -- nil and its error reply
  end
  if audit or state.free - taken + permits < largest then
    return recover_leaked(config, state)
  end
  return {oldest}
end
