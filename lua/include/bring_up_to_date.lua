--- @include "read_state" "set_number" "sum_up" "make_value" "first_write" "keep_ttl"

-- Brings the value and the permits set up to date: a lost key is rebuilt, members dated in the future are re-dated to
-- now, and members that have run out give their permits back. No call touches more than about 500 rows; the script
-- must be called again if the free permits are fewer than need and more rows wait. Nothing is changed if one of the
-- rows is corrupt. A value that is made here goes with the set, or ends when its window does. frees says that the
-- caller adds nothing, and goes on if memory is full, unless a value is to be made.
-- Returns the state; or nil and the script's answer: an error reply, or 'again', the token behind prefix. A state:
--   free    the free permits, below 0 while a lowered rate is paid off
--   oldest  member and score of the oldest row, nil if nothing is in use
--   newest  the time of the newest row
--   unset   there is no value; a missing one stands for the whole rate
--   window  the value counts a fixed window, and comes back as a whole
--   repaired   something was lost, or dated ahead by more than clocks differ
local function bring_up_to_date(config, value_text, now, need, token, prefix, frees)
  local state, rows = read_state(config, value_text, now)
  if not (state and rows) then
    return state, rows
  end
  local value_key, permits_key, rate, interval = config.value_key, config.permits_key, config.rate, config.interval
  local value, newest = state.free, state.newest

  if newest or frees and value then
    first_write(permits_key, frees and value)
  end
  local function store(free)
    if not value then
      make_value(config, free)
      local ttl = config.windowed and -1 or redis.call('PTTL', permits_key)
      if ttl >= 0 then
        redis.call('PEXPIRE', value_key, lifetime(ttl))
      end
    elseif free ~= value then
      set_number(value_key, value, free)
    end
    value = free
  end

  -- If the interval is 0, rows have run out as soon as they are dated to now.
  if not newest or math.min(newest, now) <= now - interval then
    local window = value and value < rate and is_window(config)
    local repaired = not newest and value and value < rate and not window
    if value and not window then
      store(rate)
    end
    if newest then
      redis.call('UNLINK', permits_key)
    end
    return {free = value or rate, unset = not value, window = window, repaired = repaired}
  end

  local repaired = not value or newest > now + 1000
  if not value then
    -- While the value is missing no one adds members (a Redisson that comes by makes a value first), so the set can be
    -- summed up over several calls.
    local used, answer = sum_up(config, state.last, token, prefix)
    if not used then
      return nil, answer
    end
    store(rate - used)
  elseif value > rate then
    store(rate)
  end

  if newest > now then
    local page = redis.call('ZRANGEBYSCORE', permits_key, '(' .. digits(now), '+inf', 'LIMIT', 0, 128)
    local dated = {}
    for _, member in ipairs(page) do
      dated[#dated + 1] = digits(now)
      dated[#dated + 1] = member
    end
    redis.call('ZADD', permits_key, 'XX', unpack(dated))
    if #page == 128 then
      keep_ttl(config, false, is_window(config))
      return nil, {'again', prefix .. 'again'}
    end
    newest = now
  end

  local out = math.min(redis.call('ZCOUNT', permits_key, '-inf', digits(now - interval)), #rows)
  if out > 0 then
    local sum = 0
    for i = 1, out do
      sum = sum + permits_of(rows[i])
    end
    if not is_window(config) then
      store(math.min(rate, value + sum))
    end
    redis.call('ZREMRANGEBYRANK', permits_key, 0, out - 1)
    if out == 256 and value < need then
      keep_ttl(config, false, is_window(config))
      return nil, {'again', prefix .. 'again'}
    end
  end
  return {free = value, oldest = redis.call('ZRANGE', permits_key, '0', '0', 'WITHSCORES'), newest = newest,
    window = is_window(config), repaired = repaired}
end
