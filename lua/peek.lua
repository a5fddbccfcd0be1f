-- Returns what acquire would answer to a single request with flag f, and changes nothing.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  permits; 0 answers what is free, as available does
--   2  '' or the configuration for a limiter that has none, as for acquire
--   3  flags, or '': a, w, as for acquire  4  '' or the token of the 'again' answer
-- Returns
--   rate, free, taken, interval, reset, keep, 0, waits...; with w, the epoch ms of the window's end, as acquire answers
--   'again', token   the call must be repeated
--   NOTINIT, CORRUPT <key's number> <field> <why>

--- @include "clock" "config_or_new" "figures" "read_state" "oldest_rows" "sum_up" "waits"

local permits, windowed, token = tonumber(ARGV[1]), string.find(ARGV[3], 'w'), ARGV[4]
local config, new, problem = config_or_new(redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime'), ARGV[2])
if problem then
  return problem
end
local rate, interval = config.rate, config.interval
if permits > rate then
  return {rate, 0, 0, interval, 0, 0, 0}
end
local value_key, permits_key = config.value_key, config.permits_key
config.windowed = windowed
local now = tonumber(clock())
local text = config.value_text
if text == nil then
  text = redis.call('GET', value_key)
end
local state, unsettled = read_state(config, text, now)
if not state then
  return unsettled
end
local value, newest, out, window = state.free, state.newest, 0, state.window
if unsettled then
  out = redis.call('ZCOUNT', permits_key, '-inf', digits(now - interval))
  window = windowed or is_window(config)
end
local in_use = newest and newest > now - interval

-- If the value or the configuration was lost, the value is what the set leaves. What has run out is free, but a window
-- comes back as a whole at its end.
local free = math.min(value or rate, rate)
if not in_use then
  newest, window = nil, value and window and free < rate
  if not window then
    free = rate
  end
elseif new or not value then
  local used, answer = sum_up(config, state.last, token, '', not window and out)
  if not used then
    return answer
  end
  free = math.min(value and window and value or rate, rate - used)
elseif not window and out > 0 and free < rate then
  local offset, freed, from = string.match(token, '^out:(%d+):(%d+):(.*)$')
  if from ~= state.oldest[1] then
    offset, freed = '0', '0'
  end
  local page, sum = redis.call('ZRANGE', permits_key, offset, digits(math.min(offset + 255, out - 1))), nil
  sum, problem = sum_of(page, config.permits_place)
  if problem then
    return problem
  end
  offset, freed = offset + #page, freed + sum
  if offset < out and free + freed < rate then
    return {'again', 'out:' .. digits(offset) .. ':' .. digits(freed) .. ':' .. state.oldest[1]}
  end
  free = math.min(rate, free + freed)
end

-- A refusal finds what leaked, and so does a look at what is free.
local rows, looks = {}, permits == 0
if (looks or permits > free) and in_use and not windowed then
  local rest = {free = free, oldest = redis.call('ZRANGE', permits_key, digits(out), digits(out)), out = out}
  rows, problem = oldest_rows(config, rest, 0, {permits}, looks or string.find(ARGV[3], 'a'))
  if problem then
    return problem
  end
  free = rest.free
end

local ttl = (windowed or window) and redis.call('PTTL', value_key)
local ends = ttl and (ttl >= 0 and ttl <= interval and ttl or interval) or nil
local taken = permits <= free and permits or 0
local seen = {free = free, newest = newest and math.min(newest, now)}
local answer, left = figures_of(config, seen, taken, nil, ends, false, now)
if taken == 0 and not looks then
  append_waits(config, answer, {permits}, rows, left, now, ends)
  -- A row that is dated ahead counts from now on.
  answer[#answer] = math.min(math.max(1, interval), answer[#answer])
end
return answer
