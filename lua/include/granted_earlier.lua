--- @include "requests"

-- Returns what an earlier run was granted, of which so many permits are left:
-- others may have released some. It is the least that the requests can come to.
local function granted_earlier(requests, rate, left)
  local taken, _, more = walk_requests(requests, rate, left, true)
  for _ = 1, 1000 do
    if taken == left then
      break
    end
    left = left + more
    taken, _, more = walk_requests(requests, rate, left, true)
  end
  return left
end
