-- Walks the requests, in order, with that many free permits: each gets all that it asks for or nothing. They stand in
-- ARGV from first on: permits, count, 1 if it is left out. A request for more than the limit is none. Returns the permits
-- granted, and in order the size of each run with a refused request.
local function decide_requests(free, limit, first)
  local taken, refused = 0, {}
  for i = first, #ARGV, 2 do
    local permits, count = tonumber(ARGV[i]), tonumber(ARGV[i + 1] or '1')
    if permits <= limit then
      local granted = permits == 0 and count or math.max(0, math.min(count, math.floor((free - taken) / permits)))
      taken = taken + granted * permits
      if granted < count then
        refused[#refused + 1] = permits
      end
    end
  end
  return taken, refused
end
