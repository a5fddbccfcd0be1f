-- Reads a default, acquire's ARGV 3: returns its rate, and when its program began, in epoch us. That is what the
-- program's clock said, if its age in ms and the server's clock agree within two seconds, which calls may take. Otherwise
-- these two say it, and the third value is how far they may be off. The fourth is ' program.number', the program's name
-- and which of its own defaults this is, or ''. Returns nil for a rate that is not remembered.
local function dated(default, now)
  local rate, began, place, age = string.match(default, '^(%d+ %d+ %d %d+) (%d+)(.-) ?(%d*)$')
  if not rate then
    return nil
  end
  local by_server = (now - (tonumber(age) or 0)) * 1000
  if age ~= '' and math.abs(began - by_server) > 2000000 then
    return rate, by_server, 2000000, place
  end
  return rate, tonumber(began), 0, place
end
