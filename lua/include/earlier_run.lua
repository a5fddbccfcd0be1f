--- @include "find"

-- Looks for what an earlier run of the call did, before anything is changed.
-- members are those that it would have written, single as for find, age the text
-- of ARGV, '' where there was no such run; answered tells whether the call is on
-- the list. Returns
--   the permits it was granted; nil where it did not run, or nobody knows of it. A
--   repeat that was answered without a trace was refused, or its permits have been
--   given back since: that is 0
--   the token for the steps that follow
--   a token where there are more rows to look at
local function earlier_run(permits_key, members, single, age, now, token, answered)
  local known, rest = string.match(token, '^found:(%d+);(.*)$')
  if known then
    return tonumber(known), rest
  end
  local found, more = nil, nil
  if age ~= '' then
    found, more = find(permits_key, members, single, now - tonumber(age), token)
    if answered and not found then
      found = 0
    end
  end
  return found, token, more
end
