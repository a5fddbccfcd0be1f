-- Returns the limit that text stands for, nil where it is none: digits, of a
-- number that Lua holds exactly.
local function threshold(text)
  local number = #text <= 32 and string.find(text, '^%d+$') and tonumber(text)
  if number and number <= 9007199254740991 then
    return number
  end
  return nil
end
