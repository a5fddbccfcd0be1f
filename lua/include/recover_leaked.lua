--- @include "member"
--- @include "set_number"
--- @include "window"

-- Sums up a set of at most 256 rows and raises the value if permits leaked: they are neither free nor in use. Larger sets
-- are left alone. With out nothing may be changed, and so many of the rows have run out. Returns the free permits and the
-- oldest rows; or nil, nil, error reply.
local function recover_leaked(config, free, out)
  local rows = redis.call('ZRANGE', config.permits_key, digits(out or 0), digits((out or 0) + 256))
  local used, problem = sum_of(rows, config.permits_place)
  if problem then
    return nil, nil, problem
  end
  local left = config.rate - used
  if #rows <= 256 and left > free and not is_window(config) then
    if not out then
      set_number(config.value_key, free, left)
    end
    free = left
  end
  return free, rows
end
