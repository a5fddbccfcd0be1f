-- Rewrites members of older layouts in the one of Redisson 3.21 and newer, each for as many permits and of the same time.
-- Permits that a Redisson before 3.13.3 took get members too, which run out when its window ends.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  a member, of 256 with ids that no one else uses; they bear no client's mark
--   2  '' or the token of the 'again' answer
-- Returns
--   the number of members written
--   'again', token   the call must be repeated, with another member
--   NOTINIT, CORRUPT <key's number> <field> <why>

--- @include "bring_up_to_date" "expiry" "rows" "limiter"

local text = redis.call('GET', value_key)
local value = integer(text)

-- A client's own value that ends is one, if it has no set beside it.
local window = is_window(config) or config.per_client and redis.call('PTTL', value_key) >= 0
if value and value < config.rate and redis.call('EXISTS', permits_key) == 0 and window then
  local began = expiry(value_key) - config.interval
  local in_use, written = config.rate - value, 0
  if in_use > 256 * 4294967295 then
    return corrupt(config.value_place, 'value', 'counts more permits in use than members can')
  end
  while in_use > 0 do
    local permits = math.min(in_use, 4294967295)
    redis.call('ZADD', permits_key, digits(began), with_permits(later(ARGV[1], written), permits))
    in_use, written = in_use - permits, written + 1
  end
  redis.call('PERSIST', value_key)
  redis.call('PERSIST', permits_key)
  keep_ttl(config, false, false)
  return written
end

local written, place = string.match(ARGV[2], '^from:(%d+):(.*)$')
local _, answer = bring_up_to_date(config, text, now, 0, place and '' or ARGV[2], '')
if answer and (answer.err or not place) then
  return answer
end
written = tonumber(written or '0')
local rows, first = rows_from(permits_key, place or '', 256)
_, problem = sum_of(rows, config.permits_place)
if problem then
  return problem
end
-- Reading a row takes much less time than rewriting it. Members of layout D keep the id, which bears their client's mark.
local old, new, looked, last = {}, {}, 0, nil
for i = #rows, 1, -1 do
  local row = rows[i]
  if #row ~= 21 then
    if #old == 64 then
      break
    end
    new[#new + 1] = redis.call('ZSCORE', permits_key, row)
    local member = with_permits(later(ARGV[1], #old), permits_of(row))
    if #row == 13 then
      member = string.sub(member, 1, 1) .. string.sub(row, 2, 9) .. string.sub(member, 10)
    end
    new[#new + 1] = member
    old[#old + 1] = row
    row = member
  end
  looked, last = looked + 1, row
end
if old[1] then
  redis.call('ZADD', permits_key, unpack(new))
  redis.call('ZREM', permits_key, unpack(old))
  redis.call('HSET', KEYS[1], 'lapsed', digits(now)) -- a held reservation is not found by its member any more
end
written = written + #old
if looked < #rows or first > 0 then
  return {'again', 'from:' .. digits(written) .. ':' .. place_of(permits_key, last, first + #rows - looked)}
end
return written
