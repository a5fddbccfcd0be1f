-- Returns the epoch ms at which the window ends that a moment lies in; nil if it lies in none. The numbers in text, in
-- order, are the epoch ms at which windows begin and end.
local function end_of_window(text, moment)
  local began = false
  for number in string.gmatch(text, '%-?%d+') do
    if tonumber(number) > moment then
      return began and tonumber(number) or nil
    end
    began = true
  end
end
