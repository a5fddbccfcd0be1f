-- Reports whether a member of that name is this call's own, if there is one: its request came twice. A short id may be
-- another's too, but hardly within a tenth of a second.
local function is_own(permits_key, member, now)
  local score = #member <= 20 and redis.call('ZSCORE', permits_key, member)
  return not score or tonumber(score) >= now - 100
end
