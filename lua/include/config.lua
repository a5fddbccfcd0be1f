--- @include "integer" "corrupt"

-- Turns what HMGET rate interval type keepAliveTime answered into a table, with the value key and the permits key that
-- are in use and their numbers in KEYS. at is how many keys stand before the limiter's own, 0 if it is left out; if only
-- three are given, it is of type Overall. Scripts set windowed if Redissons before 3.13.3 share it: a value is a window.
-- What holds for a while, see override, has left and base; if that is over it ends here, fields too.
-- Returns nil if there is no configuration, and nil with an error reply if there is half of one or text for a number.
local function parse_config(fields, at)
  if not (fields[1] or fields[2] or fields[3] or fields[4]) then
    return nil
  end
  at = at or 0
  local config = {
    at = at,
    rate = integer(fields[1]), interval = integer(fields[2]), keep = integer(fields[4] or '0'),
    per_client = fields[3] == '1',
    value_key = KEYS[at + 2],
    permits_key = KEYS[at + 5] and KEYS[at + 4] or KEYS[at + 3],
    value_place = at + 2, permits_place = at + 4,
  }
  if config.per_client then
    config.value_key, config.permits_key, config.value_place, config.permits_place = KEYS[at + 3], KEYS[at + 5], at + 3, at + 5
  end
  if not config.interval and fields[2] and string.find(fields[2], '^0%d') then
--- @include "override"
  end
  if not config.rate then
    return nil, corrupt(at + 1, 'rate', fields[1] and 'is no integer: ' .. fields[1] or 'is missing')
  end
  if not config.interval or config.interval < 0 then
    return nil, corrupt(at + 1, 'interval', fields[2] and 'is no number of milliseconds: ' .. fields[2] or 'is missing')
  end
  if fields[3] ~= '0' and fields[3] ~= '1' then
    return nil, corrupt(at + 1, 'type', fields[3] and 'is neither 0 nor 1: ' .. fields[3] or 'is missing')
  end
  if not config.keep then
    return nil, corrupt(at + 1, 'keepAliveTime', 'is no number of milliseconds: ' .. fields[4])
  end
  return config
end
