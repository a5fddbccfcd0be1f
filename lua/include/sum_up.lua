--- @include "digits" "member"

-- Sums up a set of any size, a page a call, while no one adds members to it; if some go, it begins again. newest is the
-- newest of them; so many of the oldest are left out, none if out is nil. Returns the permits; or nil and the script's
-- answer: an error reply, or 'again' if there are more rows, the token behind prefix.
local function sum_up(config, newest, token, prefix, out)
  local size = redis.call('ZCARD', config.permits_key)
  local offset, used, of, from = string.match(token, '^sum:(%d+):(%d+):(%d+):(.*)$')
  offset, used = tonumber(offset or '0'), tonumber(used or '0')
  if from ~= newest or tonumber(of) ~= size then
    offset, used = 0, 0
  end
  local oldest = math.max(-offset - 256, (out or 0) - size)
  local page = redis.call('ZRANGE', config.permits_key, digits(oldest), digits(-offset - 1))
  local sum, problem = sum_of(page, config.permits_place)
  if problem then
    return nil, problem
  end
  used = used + sum
  if #page == 256 then
    return nil, {'again', prefix .. 'sum:' .. digits(offset + 256) .. ':' .. digits(used) .. ':' .. digits(size) .. ':' .. newest}
  end
  return used
end
