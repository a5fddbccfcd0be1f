--- @include "member" "set_number" "window"

-- Sums up a set of at most 256 rows and raises the value if permits leaked: they are neither free nor in use. Larger sets
-- are left alone. state is bring_up_to_date's, in which the free permits may grow. For a peek state.out is set: so many of
-- the rows have run out, and nothing else may be changed. Returns the oldest rows; or nil, error reply.
local function recover_leaked(config, state)
  local out = state.out or 0
  local rows = redis.call('ZRANGE', config.permits_key, digits(out), digits(out + 256))
  local used, problem = sum_of(rows, config.permits_place)
  if problem then
    return nil, problem
  end
  local left = config.rate - used
  if #rows <= 256 and left > state.free and not is_window(config) then
    if not state.out then
      set_number(config.value_key, state.free, left)
    end
    state.free, state.repaired = left, true
  end
  return rows
end
