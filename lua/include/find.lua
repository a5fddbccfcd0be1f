--- @include "member" "rows"

-- Looks for what an earlier run of the same call left behind: one of the members that it would have written, whatever
-- permits are on it now. since is when it can have run at the earliest, place where to go on: see rows_from. Without a
-- place only members as written are looked for. With single, each granted request has a member of its own; early is nil or
-- how many ms before the run each is dated: see read_requests. With span, one of these, only members dated so are looked
-- for, in so many rows. Returns the permits granted; or nil, place if more rows are to be looked at; or nil if there is none.
-- In members, last becomes the place of the last that was found.
local function find(permits_key, members, single, since, place, early, span, size)
  local found, ran, counted = nil, nil, {}
  -- Counts a row that was written as one of the members, once, and notes when the call ran.
  local function count(row)
    local i = #row == #members[1] and number_of(row) - number_of(members[1]) + 1
    local member = i and members[i]
    local score = member and with_permits(member, permits_of(row)) == row and redis.call('ZSCORE', permits_key, row)
    local at = score and score + (early and early[i] or 0)
    -- The id of layout B is so short that an older member may have the same.
    if at and (#row > 8 or at >= since) and not counted[row] then
      counted[row] = true
      ran = ran or at
      found = single and (found or 0) + permits_of(member) or math.max(found or 0, permits_of(row))
      members.last = math.max(members.last or 0, i)
    end
  end

  for _, member in ipairs(span and {} or members) do
    count(member)
  end
  if not found and place then
    local rows, first = rows_from(permits_key, place, size or 256)
    for _, row in ipairs(rows) do
      count(row)
    end
    if not found and first > 0 and tonumber(redis.call('ZSCORE', permits_key, rows[1])) >= since - (span or 0) then
      return nil, place_of(permits_key, rows[1], first)
    end
  end
  -- One tells when the others were dated, on which others may have left less.
  local spans = early and early.spans or {0}
  for i = 1, found and single and #spans or 0 do
    local date = digits(ran - spans[i])
    for _, row in ipairs(redis.call('ZRANGEBYSCORE', permits_key, date, date, 'LIMIT', 0, math.ceil(256 / math.min(#spans, 8)))) do
      count(row)
    end
  end
  return found
end
