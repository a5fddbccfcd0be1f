--- @include "digits"
--- @include "member"

-- Looks for what an earlier run of the same attempt left behind: a member with
-- its identity and any permits, among those no older than since. Returns the
-- permits; or nil, token where there are more rows to look at; or nil where
-- there is no such member.
local function find(permits_key, member, since, token)
  if redis.call('ZSCORE', permits_key, member) then
    return permits_of(member)
  end
  local offset = string.match(token, '^find:(%d+)$')
  if token ~= '' and not offset then
    return nil
  end
  offset = tonumber(offset or '0')
  local identity = string.sub(member, 1, -5)
  local rows = redis.call('ZRANGE', permits_key, digits(-offset - 256), digits(-offset - 1))
  local found = nil
  for _, row in ipairs(rows) do
    if #row == #member and string.sub(row, 1, -5) == identity then
      found = math.max(found or 0, permits_of(row))
    end
  end
  if found or #rows < 256 or tonumber(redis.call('ZSCORE', permits_key, rows[1])) < since then
    return found
  end
  return nil, 'find:' .. digits(offset + 256)
end
