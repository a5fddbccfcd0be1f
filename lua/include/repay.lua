--- @include "integer"
--- @include "digits"
--- @include "member"
--- @include "window"

-- Sums up a set of at most 256 rows and raises the value where permits leaked:
-- what is neither free nor in use belongs to nobody. Larger sets are left
-- alone. Returns the free permits and the oldest rows; or nil, nil, error reply.
local function repay(config, value_key, permits_key, places, free)
  local rows = redis.call('ZRANGE', permits_key, 0, 256)
  local used, problem = sum_of(rows, places[2])
  if problem then
    return nil, nil, problem
  end
  local owed = config.rate - used - free
  if #rows <= 256 and owed > 0 and not is_window(value_key, permits_key, false, config.interval) then
    redis.call('INCRBY', value_key, digits(owed))
    free = free + owed
  end
  return free, rows
end
