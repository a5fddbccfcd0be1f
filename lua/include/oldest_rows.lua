--- @include "recover_leaked"

-- Looks for the rows that show when the refused requests could pass. Mostly it is the oldest alone. If that one has too
-- few permits for the largest of them more rows are looked at, and then leaked permits show; with audit that is always
-- done. state is bring_up_to_date's, with something in use; taken are the permits granted. For a peek state.out is what
-- out is for recover_leaked. Returns the free permits, which may have grown, and the rows, the oldest first; or nil, nil,
-- error reply.
local function oldest_rows(config, state, taken, refused, audit)
  local oldest, largest = state.oldest[1], 0
  local permits, problem = sum_of({oldest}, config.permits_place)
  if problem then
    return nil, nil, problem
  end
  for _, size in ipairs(refused) do
    largest = math.max(largest, size)
  end
  if audit or state.free - taken + permits < largest then
    return recover_leaked(config, state.free, state.out)
  end
  return state.free, {oldest}
end
