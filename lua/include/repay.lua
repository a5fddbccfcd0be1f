--- @include "digits"
--- @include "member"
--- @include "window"

-- Sums up a set of at most 256 rows and raises the value if permits leaked:
-- what is neither free nor in use belongs to nobody. Larger sets are left
-- alone. out says that nothing is to be changed: so many of the rows have run out.
-- Returns the free permits and the oldest rows; or nil, nil, error reply.
local function repay(config, value_key, permits_key, places, free, out)
  local rows = redis.call('ZRANGE', permits_key, digits(out or 0), digits((out or 0) + 256))
  local used, problem = sum_of(rows, places[2])
  if problem then
    return nil, nil, problem
  end
  local owed = config.rate - used - free
  if #rows <= 256 and owed > 0 and not is_window(config, value_key, permits_key, false) then
    if not out then
      redis.call('INCRBY', value_key, digits(owed))
    end
    free = free + owed
  end
  return free, rows
end
