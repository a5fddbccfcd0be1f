-- Returns the server's time in epoch ms, as digits: the microseconds of TIME have no leading zeros.
local function clock()
  local time = redis.call('TIME')
  return time[1] .. string.sub('00000' .. time[2], -6, -4)
end
