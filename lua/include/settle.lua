--- @include "integer"
--- @include "digits"
--- @include "member"

-- Brings the value and the permits set up to date: a lost key is rebuilt,
-- members dated in the future are re-dated to now, and members that have run
-- out give their permits back. No call touches more than 256 rows; where the
-- free permits are fewer than need and more rows wait, a token is returned,
-- with which the caller is to be called again.
--
-- places are the numbers of the two keys in KEYS, for the error reply.
-- Returns state, token, error reply; one of the three. The state is a table:
--   free    the free permits, below 0 while a lowered rate is paid off
--   oldest  member and score of the oldest row, nil where nothing is in use
--   newest  the time of the newest row
local function settle(config, value_key, permits_key, places, value_text, now, need, token)
  local rate, interval = config.rate, config.interval
  local value = integer(value_text)
  if value_text and not value then
    return nil, nil, corrupt(places[1], 'value', 'is no integer: ' .. value_text)
  end

  local function store(free)
    if not value then
      redis.call('SET', value_key, digits(free))
    elseif free ~= value then
      redis.call('INCRBY', value_key, digits(free - value))
    end
    value = free
  end

  local last = redis.call('ZRANGE', permits_key, -1, -1, 'WITHSCORES')
  local newest = nil
  if last[1] then
    if not permits_of(last[1]) then
      return nil, nil, corrupt_member(places[2], last[1])
    end
    newest = tonumber(last[2]) or math.huge
  end

  if not newest or newest <= now - interval then
    store(rate)
    if newest then
      redis.call('UNLINK', permits_key)
    end
    return {free = rate}
  end

  if not value then
    -- While the value is missing nobody adds members (a Redisson that comes by
    -- makes a value first), so the set can be summed up over several calls.
    local offset, used, from = string.match(token, '^sum:(%d+):(%d+):(.*)$')
    offset, used = tonumber(offset or '0'), tonumber(used or '0')
    if from ~= last[1] then
      offset, used = 0, 0
    end
    local rows = redis.call('ZRANGE', permits_key, digits(-offset - 256), digits(-offset - 1))
    local sum, problem = sum_of(rows, places[2])
    if problem then
      return nil, nil, problem
    end
    used = used + sum
    if #rows == 256 then
      return nil, 'sum:' .. digits(offset + 256) .. ':' .. digits(used) .. ':' .. last[1]
    end
    store(rate - used)
  elseif value > rate then
    store(rate)
  end

  if newest > now then
    local rows = redis.call('ZRANGEBYSCORE', permits_key, '(' .. digits(now), '+inf', 'LIMIT', 0, 256)
    for _, member in ipairs(rows) do
      redis.call('ZADD', permits_key, 'XX', digits(now), member)
    end
    if #rows == 256 then
      return nil, 'again'
    end
    newest = now
  end

  local oldest = redis.call('ZRANGE', permits_key, 0, 0, 'WITHSCORES')
  if tonumber(oldest[2]) <= now - interval then
    local rows = redis.call('ZRANGEBYSCORE', permits_key, '-inf', digits(now - interval), 'LIMIT', 0, 256)
    local sum, problem = sum_of(rows, places[2])
    if problem then
      return nil, nil, problem
    end
    -- The value goes first: where memory is short, Redis refuses that one.
    store(math.min(rate, value + sum))
    redis.call('ZREMRANGEBYRANK', permits_key, 0, #rows - 1)
    if #rows == 256 and value < need then
      return nil, 'again'
    end
    oldest = redis.call('ZRANGE', permits_key, 0, 0, 'WITHSCORES')
  end
  return {free = value, oldest = oldest, newest = newest}
end
