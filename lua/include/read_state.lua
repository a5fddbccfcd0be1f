--- @include "integer" "member" "window"

-- Looks at the value and the ends of the permits set, and changes nothing. Returns bring_up_to_date's state with the last
-- row; if something may need to be brought up to date, only what is there, free being the value or nil, and beside it the
-- oldest rows; or nil, error reply if one of these rows or the value is corrupt.
local function read_state(config, value_text, now)
  local permits_key, value = config.permits_key, integer(value_text)
  if value_text and not value then
    return nil, corrupt(config.value_place, 'value', 'is no integer: ' .. value_text)
  end
  local first = redis.call('ZRANGE', permits_key, '0', '0', 'WITHSCORES')
  local last = redis.call('ZRANGE', permits_key, '-1', '-1', 'WITHSCORES')
  local newest = last[1] and (tonumber(last[2]) or math.huge)
  if newest and value and value <= config.rate and newest <= now and (tonumber(first[2]) or 0) > now - config.interval and
      permits_of(first[1]) and permits_of(last[1]) then
    return {free = value, oldest = first, newest = newest, last = last[1], window = is_window(config)}
  end

  local rows = redis.call('ZRANGE', permits_key, 0, 255)
  local _, problem = sum_of(rows, config.permits_place)
  if not problem and newest then
    _, problem = sum_of({last[1]}, config.permits_place)
  end
  if problem then
    return nil, problem
  end
  return {free = value, oldest = first, newest = newest, last = last[1]}, rows
end
