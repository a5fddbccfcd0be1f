--- @include "find"

-- A repeated call searches for what an earlier attempt left behind, in steps that change nothing. Its tokens:
--   find:began:since:place   the search began at that ms, goes back to the ms since, and goes on from that place, before
--                            which the number of the set or span stands
--   searched:began;rest      nothing was left behind before that ms. rest is the token of the next step, which may write
--   since:began              such a step may have run already: what it left is no older

-- Reads a token. Returns began, since and place of the search, age being the call's; or began, nil and the rest. The call
-- may have been on its way for three seconds.
local function search_of(token, now, age)
  local over, rest = string.match(token, '^searched:(%d+);(.*)$')
  local began, from, place = string.match(token, '^find:(%d+):(%d+):(.*)$')
  if over or began then
    return over or began, tonumber(from or ''), place or rest
  end
  return digits(now), tonumber(string.match(token, '^since:(%d+)$') or '') or now - tonumber(age) - 3000, ''
end

-- Makes a step of the search in one set. Returns what find does; or nil, token if the call must be repeated; or nil, nil
-- what stands before the tokens of the steps that follow, and the token of the next of these. early is as for find.
local function search(permits_key, members, single, token, now, age, early)
  local began, since, rest = search_of(token, now, age)
  local number, place = string.match(since and rest or '', '^(%d+):(.*)$')
  local spans, over, rows = early and early.spans or {0}, 'searched:' .. began .. ';', 0
  local size = math.ceil(256 / math.min(#spans, 8))
  -- Without since the attempt may have come during the search.
  local found = find(permits_key, members, single, since or tonumber(began), nil, early)
  for i = tonumber(number or '1'), found and 0 or #spans do
    place = place or spans[i] > 0 and digits(now - spans[i]) .. ':0:' or ''
    while place and not found do
      if since and rows >= 256 then
        return nil, 'find:' .. began .. ':' .. digits(since) .. ':' .. i .. ':' .. place
      end
      found, place = find(permits_key, members, single, since or tonumber(began), place, early, spans[i], size)
      rows, place = rows + size, since and place
    end
  end
  return found, number and not found and over or nil, over, since and '' or rest
end
