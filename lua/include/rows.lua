--- @include "digits"

-- A place is a position of a walk through a permits set, from the newest row to older ones: 'score:newer:member', a row
-- and how many newer ones share its score. A walk from there skips no row, whatever came or went; it may see some twice.

-- Returns at most so many rows from a place on, '' being the newest row, the oldest first, and the rank of the oldest.
local function rows_from(permits_key, place, count)
  local last
  local score, newer, member = string.match(place, '^([^:]+):(%d+):(.*)$')
  if score then
    local top = redis.call('ZCOUNT', permits_key, '-inf', score) - 1
    last = math.max(top - newer, 0)
    if redis.call('ZRANGE', permits_key, digits(last), digits(last))[1] ~= member then
      last = top
    end
  else
    last = redis.call('ZCARD', permits_key) - 1
  end
  if last < 0 then
    return {}, 0
  end
  local first = math.max(last - count + 1, 0)
  return redis.call('ZRANGE', permits_key, digits(first), digits(last)), first
end

-- Returns the place of the row of that rank.
local function place_of(permits_key, member, rank)
  local score = redis.call('ZSCORE', permits_key, member)
  return score .. ':' .. digits(redis.call('ZCOUNT', permits_key, '-inf', score) - 1 - rank) .. ':' .. member
end
