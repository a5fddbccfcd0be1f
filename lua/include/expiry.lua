--- @include "clock"

-- Returns the epoch ms at which a key expires, nil if it does not, and its PTTL. Before Redis 7.2 time goes on during a
-- script, and the machine may stall between TIME and PTTL: both are read again until they are of one ms.
local function expiry(key)
  local left, now
  repeat
    left, now = redis.call('PTTL', key), clock()
  until redis.call('PTTL', key) == left
  return left >= 0 and now + left or nil, left
end
