-- A rate that holds for a while: its interval has a 0 in front, which Redissons read over. The hash's field "override" says
-- until when, and what comes back then: 'epoch-ms rate interval keepAliveTime'. Once it is over, that comes back here. As
-- when a rate is set, permits in use stay counted; a client's own value may be of another rate, and is summed up anew.
-- Without the right to write it is only read, and value_text is the value as it would be. This is text of parse_config.
local text = redis.call('HGET', KEYS[at + 1], 'override')
local ends, rate, interval, keep = string.match(text or '', '^(%d+) (%d+) (%d+) (%d+)$')
if text and not (integer(ends) and integer(rate) and integer(interval) and integer(keep)) then
  return nil, corrupt(at + 1, 'override', 'does not say what comes back: ' .. text)
end
config.interval = text and integer(string.sub(fields[2], 2))
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
config.ends, config.left, config.base = ends, ends and ends - now, {rate, interval, keep}
if config.interval and config.left <= 0 and config.rate and (KEYS[at + 5] or not config.per_client) then
  local value, before, after = integer(redis.call('GET', config.value_key)), config.rate, tonumber(rate)
  local kept = value and math.max(-9007199254740991, after - (before - math.min(value, before)))
  if redis.pcall('HDEL', KEYS[at + 1], 'override') == 1 then -- first, so that a full memory lets the rest through
    redis.call('HSET', KEYS[at + 1], 'rate', rate, 'interval', interval, 'keepAliveTime', keep)
    if value and config.per_client then
      redis.call('UNLINK', config.value_key)
    elseif value then
      redis.call('INCRBY', config.value_key, string.format('%.0f', kept - value))
    end
    if interval + 0 < config.interval then
      redis.call('HSET', KEYS[at + 1], 'lapsed', string.format('%.0f', now))
      config.lapsed = now
    end
  elseif value then
    config.value_text = not config.per_client and string.format('%.0f', kept)
  end
  fields[1], fields[2], fields[4] = rate, interval, keep
  config.rate, config.interval, config.keep, config.base = after, tonumber(interval), tonumber(keep), nil
end
