--- @include "integer"
--- @include "corrupt"
--- @include "digits"
--- @include "sum_up"
--- @include "window"
--- @include "make_value"
--- @include "first_write"

-- Makes the value of a limiter that is given a configuration because its own is
-- lost: of which rate the value was the rest nobody knows, so what is in use
-- tells. What a fixed window counts can't be told; its value stays, but no higher
-- than the set allows. One that counts nothing goes: it may be none. Without a
-- configuration nobody adds members. Returns nil when that is done; a token if
-- there are more rows to look at, with nothing changed yet; or nil, error reply.
local function recount(config, value_key, permits_key, places, now, token, windowed)
  local text = redis.call('GET', value_key)
  local value = integer(text)
  if text and not value then
    return nil, corrupt(places[1], 'value', 'is no integer: ' .. text)
  end
  local last = redis.call('ZRANGE', permits_key, '-1', '-1', 'WITHSCORES')
  local used, more, problem = sum_up(permits_key, places[2], last[1], token)
  if problem then
    return nil, problem
  end
  local in_use = last[1] and (tonumber(last[2]) or math.huge) > now - config.interval
  if in_use and more then
    return more
  end
  local free = config.rate
  if in_use then
    free = free - used
  end
  first_write(permits_key)
  if value and (windowed or in_use or value < config.rate) and is_window(config, value_key, permits_key, windowed) then
    redis.call('INCRBY', value_key, digits(math.min(0, free - value)))
  elseif in_use then
    make_value(value_key, free, windowed, config.interval)
  else
    redis.call('UNLINK', value_key)
  end
  if not in_use then
    redis.call('UNLINK', permits_key)
  end
  return nil
end
