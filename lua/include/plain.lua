-- Decides the common cases with the fewest commands: one request to a shared
-- limiter that has enough free permits, or will have them when its oldest member
-- runs out. Once in a few grants it leaves the decision to acquire's long way
-- round, which reclaims what has run out. flags and age are nil where they
-- are empty. Returns the permits granted, the wait below 0, or nil where it did
-- not decide; and what it read: the configuration's fields and the value.
-- Arithmetic turns text into numbers, without a call.
local function plain(config_key, value_key, permits_key, member, sum_text, flags, age, now_text)
  local call = redis.call
  local fields = call('HMGET', config_key, 'rate', 'interval', 'type', 'keepAliveTime', 'answered')
  if fields[3] ~= '0' or (fields[4] and fields[4] ~= '0') or fields[5] then
    return nil, fields
  end
  local value_text = call('GET', value_key)
  local rate_text, interval_text = fields[1], fields[2]
  if not (value_text and rate_text and interval_text) or (flags and (flags ~= 'a' or age)) or
      not string.find(rate_text .. ' ' .. interval_text .. ' ' .. value_text, '^[1-9]%d* [1-9]%d* %d+$') or
      (value_text ~= '0' and string.byte(value_text) == 48) then
    return nil, fields, value_text
  end
  local rate, interval, value, sum = rate_text + 0, interval_text + 0, value_text + 0, sum_text + 0
  if sum > rate or value > rate or rate > 9007199254740991 or interval > 9007199254740991 then
    return nil, fields, value_text
  end

  if sum <= value then
    local step = rate / 64
    if step < 16 then
      step = 16
    elseif step > 256 then
      step = 256
    end
    if value % step < sum then
      return nil, fields, value_text
    end
    if call('ZADD', permits_key, 'NX', now_text, member) == 1 then
      call('DECRBY', value_key, sum_text)
      if value < rate and call('ZCARD', permits_key) == 1 then
        local left, whole = call('PTTL', value_key), call('PTTL', config_key)
        if left < 0 or left > interval or (whole >= 0 and whole <= left + 1000) then
          -- The set was lost, and this is no window: nothing else is in use.
          call('INCRBY', value_key, string.format('%.0f', rate - value))
        end
      end
    end
    local ttl = call('PTTL', config_key)
    if ttl >= 0 then
      local left, permits = call('PTTL', value_key), call('PTTL', permits_key)
      local window = left >= 0 and left <= interval and ttl > left + 1000 and (permits < 0 or permits > left + 1000)
      -- Others may have set an end later than Redis can count by PEXPIRE.
      ttl = string.format('%.0f', math.max(1, math.min(ttl, 9223372036854)))
      if not window then
        call('PEXPIRE', value_key, ttl)
      end
      call('PEXPIRE', permits_key, ttl)
    end
    return sum
  end

  if not flags then
    local oldest = call('ZRANGE', permits_key, '0', '0', 'WITHSCORES')
    local first = oldest[1]
    if first and #first == 21 and string.byte(first) == 16 and
        call('ZCOUNT', permits_key, '(' .. now_text, 'inf') == 0 then
      local wait = oldest[2] + interval - now_text
      local a, b, c, d = string.byte(first, 18, 21)
      if wait >= 1 and value + a + b * 256 + c * 65536 + d * 16777216 >= sum then
        return -wait
      end
    end
  end
  return nil, fields, value_text
end
