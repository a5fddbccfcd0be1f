-- Returns the error reply for state that is not a limiter's. place is the key's number in KEYS.
local function corrupt(place, field, why)
  why = string.gsub(why, '[^ -~]', '?')
  return redis.error_reply('CORRUPT ' .. place .. ' ' .. field .. ' ' .. string.sub(why, 1, 80))
end
