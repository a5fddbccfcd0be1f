-- Returns the number that text stands for; nil if it is missing or no integer that Redis and Lua both hold exactly.
local function integer(text)
  if not text or #text > 17 or (text ~= '0' and not string.find(text, '^%-?[1-9]%d*$')) then
    return nil
  end
  local number = tonumber(text)
  if number > 9007199254740991 or number < -9007199254740991 then
    return nil
  end
  return number
end
