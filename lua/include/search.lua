--- @include "find"

-- A repeated call searches for what an earlier attempt left behind, in steps that change nothing. Its tokens:
--   find:began:since:place   the search began at that ms, goes back to the ms since, and goes on from that place
--   searched:began;rest      nothing was left behind before that ms. rest is the token of the next step, which may write
--   since:began              such a step may have run already: what it left is no older

-- Reads a token. Returns began, since and place of the search, age being the call's; or began, nil and the rest.
local function search_of(token, now, age)
  local began, rest = string.match(token, '^searched:(%d+);(.*)$')
  if began then
    return began, nil, rest
  end
  local from, place
  began, from, place = string.match(token, '^find:(%d+):(%d+):(.*)$')
  if began then
    return began, tonumber(from), place
  end
  return digits(now), tonumber(string.match(token, '^since:(%d+)$') or '') or now - tonumber(age), ''
end

-- Makes a step of the search in one set. Returns what find does; or nil, token if the call must be repeated; or nil, nil
-- and what stands before the tokens of the steps that follow. The members are dated early ms before the attempt, or 0.
local function search(permits_key, members, single, token, now, age, early)
  early = early or 0
  local newest = early > 0 and digits(now - early) .. ':0:' or ''
  local began, since, place = search_of(token, now, age)
  if not since then
    -- The attempt may have come during the search.
    return (find(permits_key, members, single, tonumber(began) - early, newest)), nil, 'searched:' .. began .. ';'
  end
  local found, more = find(permits_key, members, single, since - early, place ~= '' and place or newest)
  local over = 'searched:' .. began .. ';'
  if more then
    return nil, 'find:' .. began .. ':' .. digits(since) .. ':' .. more
  elseif not found and place ~= '' then
    return nil, over
  end
  return found, nil, over
end
