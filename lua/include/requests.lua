--- @include "digits" "member"

-- Reads acquire's requests, which stand in ARGV from 7 on, or their sum if there is only one. single says that each
-- granted request gets a member of its own, which runs out after its one of the holds if these are not nil; up_to that the
-- one request takes as many permits as are free. Returns a table:
--   runs     a list like ARGV, with permits and count of each run of equal requests from 8 on, as text
--   line     how many of the first requests stand in line
--   single, up_to   as above
--   members  a member for each request if single, otherwise one for all
--   dates    of the members, if single, as text
--   early    nil, or how many ms each is dated before now; in spans each such number once
--   sum      the permits of all. A request for more than the rate is none; the client tells its caller
local function read_requests(sum_text, single, up_to, rate, holds, interval, now_text)
  local runs, members, sum = ARGV, single and {} or {ARGV[1]}, 0
  local dates, early = {}, holds and {spans = {}}
  if not runs[8] then
    runs = {'', '', '', '', '', '', '0', sum_text, '1'}
  end
  for i = 8, #runs, 2 do
    local permits, count = runs[i] + 0, runs[i + 1] + 0
    local most = up_to and math.min(permits, rate) or permits
    if most <= rate then
      sum = sum + most * count
    end
    for _ = 1, single and count or 0 do
      local date = now_text
      members[#members + 1] = with_permits(later(ARGV[1], #members), permits)
      if early then
        local hold = string.match(holds, '^%d+') + 0
        local span = hold > 0 and math.max(0, interval - hold) or 0
        holds, date = string.match(holds, ',(.*)$') or holds, digits(now_text - span)
        if not early.spans[date] then
          early.spans[date], early.spans[#early.spans + 1] = true, span
        end
        early[#members] = span
      end
      dates[#members] = date
    end
  end
  return {runs = runs, line = runs[7] + 0, single = single, up_to = up_to, members = members, dates = dates, early = early,
    sum = sum}
end

-- Walks the requests, in order, with that many free permits. earlier says that these are what an earlier run was granted,
-- at a rate that may have been higher. Returns the permits granted; in order the refused sizes that get a wait; how many
-- more free permits would have granted more; and the dates and members of the granted requests, if single.
local function walk_requests(requests, rate, free, earlier)
  local left, taken, refused, more, place, blocked = free, 0, {}, math.huge, 0, false
  local own, runs, line = {}, requests.runs, requests.line
  for i = 8, #runs, 2 do
    local permits, count = runs[i] + 0, runs[i + 1] + 0
    if requests.up_to then
      permits = math.max(1, math.min(permits, left))
    end
    local waits = place < line
    if (permits <= rate or earlier) and not (waits and blocked) then
      local granted = math.max(0, math.min(count, math.floor(left / permits)))
      left = left - granted * permits
      taken = taken + granted * permits
      for j = 1, requests.single and granted or 0 do
        local member = requests.members[place + j]
        own[#own + 1] = requests.dates[place + j]
        own[#own + 1] = requests.up_to and with_permits(member, permits) or member
      end
      if granted < count then
        if permits <= rate then
          refused[#refused + 1] = permits
        end
        more = math.min(more, permits - left)
        blocked = blocked or waits
      end
    end
    place = place + count
  end
  return taken, refused, more, own
end
