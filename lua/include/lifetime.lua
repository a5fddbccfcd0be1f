--- @include "digits"

-- Returns the digits of a time to live that every server takes: others may have asked for more than Redis can count.
local function lifetime(ms)
  return digits(math.max(1, math.min(ms, 9223372036854)))
end
