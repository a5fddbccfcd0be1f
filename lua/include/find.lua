--- @include "member" "rows"

-- Looks for what an earlier run of the same call left behind: one of the members that it would have written, whatever
-- permits are on it now. since is when it can have run at the earliest, place where to go on: see rows_from. Without a
-- place only members as written are looked for. With single, each granted request has a member of its own; early is nil or
-- how many ms before the run each is dated: see read_requests. With span, one of these, only members dated so are looked
-- for, in so many rows. Returns the permits granted; or nil, place if more rows are to be looked at; or nil if there is none.
local function find(permits_key, members, single, since, place, early, span, size)
  local found, ran = nil, nil
  -- Returns the member that a row was written as, if it is one of them, and when the call ran.
  local function origin(row)
    local i = #row == #members[1] and number_of(row) - number_of(members[1]) + 1
    local member = i and members[i]
    local score = member and with_permits(member, permits_of(row)) == row and redis.call('ZSCORE', permits_key, row)
    local at = score and score + (early and early[i] or 0)
    -- The id of layout B is so short that an older member may have the same.
    if at and (#row > 8 or at >= since) then
      return member, at
    end
  end

  for _, member in ipairs(span and {} or members) do
    local _, at = origin(member)
    if at then
      found, ran = (found or 0) + permits_of(member), at
    end
  end
  local written = found
  if not found and place then
    local rows, first = rows_from(permits_key, place, size or 256)
    for _, row in ipairs(rows) do
      local _, at = origin(row)
      ran = ran or at
    end
    if not ran and first > 0 and tonumber(redis.call('ZSCORE', permits_key, rows[1])) >= since - (span or 0) then
      return nil, place_of(permits_key, rows[1], first)
    end
  end
  -- One tells when the others were dated, on which others may have left less.
  local spans = early and early.spans or {0}
  for i = 1, ran and (single or not written) and #spans or 0 do
    local date = digits(ran - spans[i])
    for _, row in ipairs(redis.call('ZRANGEBYSCORE', permits_key, date, date, 'LIMIT', 0, math.ceil(256 / math.min(#spans, 8)))) do
      local member = origin(row)
      if member and not (written and member == row) then
        found = single and (found or 0) + permits_of(member) or math.max(found or 0, permits_of(row))
      end
    end
  end
  return found
end
