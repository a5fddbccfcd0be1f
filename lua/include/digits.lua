-- Returns the digits of an integer. Lua's own conversion turns to exponents from 1e14 on.
local function digits(number)
  return string.format('%.0f', number)
end
