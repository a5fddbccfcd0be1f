-- Returns the epoch ms at which the window ends that a moment lies in, of those whose beginnings and
-- ends, in epoch ms and in order, are the numbers in text; nil if it lies in none of them.
local function end_of_window(text, moment)
  local began = false
  for number in string.gmatch(text, '%d+') do
    if tonumber(number) > moment then
      return began and tonumber(number) or nil
    end
    began = true
  end
end
