--- @include "integer" "dated" "sum_up" "window" "make_value" "first_write" "keep_ttl"

-- Writes the configuration with the fields new, which config was read from, and starts its time to live. Value and
-- permits get that too, so that keys left behind live as long. A window keeps its end. replaces says that it has another.
local function set_config(config, new, now, window, replaces)
  local key = KEYS[config.at + 1]
  local default = {}
  if new[5] then
    local rate, began, _, place = dated(new[5], now)
    default = {'default', rate .. ' ' .. digits(began) .. place}
  end
  redis.call('HSET', key, 'rate', new[1], 'interval', new[2], 'keepAliveTime', new[4], 'type', new[3], unpack(default))
  if replaces and not new[5] then
    redis.call('HDEL', key, 'default', 'override')
  end
  if replaces then
    redis.call('PERSIST', key)
  end
  if window then
    end_window(config)
  else
    redis.call('PERSIST', config.value_key)
  end
  redis.call('PERSIST', config.permits_key)
  keep_ttl(config, true, window)
end

-- Makes the configuration of a limiter that has none, or has lost it. It is then unknown which rate a value belongs to,
-- so the permits in use decide. What a fixed window counts is unknown too; its value stays, but no higher than the set
-- allows. A window that counts nothing goes: it may be none. Without a configuration no one adds members.
-- Returns nil once it is made, or the script's answer, with nothing changed yet: an error reply, or 'again' if there are
-- more rows to look at, the token behind prefix.
local function make_config(config, new, now, token, prefix)
  local value_key, permits_key = config.value_key, config.permits_key
  local text = redis.call('GET', value_key)
  local value = integer(text)
  if text and not value then
    return corrupt(config.value_place, 'value', 'is no integer: ' .. text)
  end
  local last = redis.call('ZRANGE', permits_key, '-1', '-1', 'WITHSCORES')
  local used, answer = sum_up(config, last[1], token, prefix)
  local in_use = last[1] and (tonumber(last[2]) or math.huge) > now - config.interval
  if answer and (in_use or answer.err) then
    return answer
  end
  local free = in_use and config.rate - used or config.rate
  first_write(permits_key)
  if value and (config.windowed or in_use or value < config.rate) and is_window(config) then
    redis.call('INCRBY', value_key, digits(math.min(0, free - value)))
  elseif in_use then
    make_value(config, free)
  else
    redis.call('UNLINK', value_key)
  end
  if not in_use then
    redis.call('UNLINK', permits_key)
  end
  set_config(config, new, now, is_window(config))
end
