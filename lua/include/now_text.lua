-- Puts the server's time into now_text, as clock does. It is the text of a script's head, which costs no closure and
-- mostly one string less, and works with call.
local time = call('TIME')
local now_text, part = time[1], time[2]
if #part < 6 then
  part = string.sub('00000' .. part, -6)
end
now_text = now_text .. string.sub(part, 1, 3)
