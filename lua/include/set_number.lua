--- @include "digits"

-- Brings the number at a key from what it is to another. Lua counts both exactly, but not always the difference.
local function set_number(key, from, to)
  if to - from > 9007199254740991 then
    redis.call('INCRBY', key, digits(-from))
    from = 0
  end
  redis.call('INCRBY', key, digits(to - from))
end
