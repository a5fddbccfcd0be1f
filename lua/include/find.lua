--- @include "member" "rows"

-- Looks for what an earlier run of the same call left behind: one of the members that it would have written, whatever
-- permits are on it now. since is when it can have run at the earliest, place where to go on: see rows_from. Without a
-- place only members as written are looked for. With single, each granted request has a member of its own. Returns the
-- permits granted; or nil, place if there are more rows to look at; or nil if there is no such member.
local function find(permits_key, members, single, since, place)
  local found, at = nil, nil
  -- Adds up the rows that are left of the members, as written or shrunk.
  local function look(rows, written)
    for _, row in ipairs(rows) do
      if #row == #members[1] then
        local member = members[number_of(row) - number_of(members[1]) + 1]
        local permits = permits_of(row)
        if member and (written or member ~= row) and with_permits(member, permits) == row and
            (#row > 8 or tonumber(redis.call('ZSCORE', permits_key, row)) >= since) then
          found = single and (found or 0) + permits_of(member) or math.max(found or 0, permits)
        end
      end
    end
  end

  for _, member in ipairs(members) do
    local score = redis.call('ZSCORE', permits_key, member)
    -- The id of layout B is so short that an older member may have the same.
    if score and (#member > 8 or tonumber(score) >= since) then
      found, at = (found or 0) + permits_of(member), score
    end
  end
  if found and single then
    look(redis.call('ZRANGEBYSCORE', permits_key, at, at, 'LIMIT', 0, 256), false)
  end
  if found or not place then
    return found
  end
  local rows, first = rows_from(permits_key, place, 256)
  look(rows, true)
  if found or first == 0 or tonumber(redis.call('ZSCORE', permits_key, rows[1])) < since then
    return found
  end
  return nil, place_of(permits_key, rows[1], first)
end
