-- Tells what acquire would answer to one request by itself, with letter f, and
-- changes nothing.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  permits
--   2  '' or the configuration for a limiter that has none, as for acquire
--   3  letters, or '': a, w, as for acquire
--   4  '' or the token of the 'again' answer
-- Returns
--   rate, free, taken, interval, reset, keep, waits...; with w, the epoch ms at
--   which the window ends stands before the waits: as acquire does
--   'again', token   the call is to be repeated
--   NOTINIT, CORRUPT <key's number> <field> <why>

--- @include "clock"
--- @include "config_or_new"
--- @include "digits"
--- @include "figures"
--- @include "integer"
--- @include "member"
--- @include "pair"
--- @include "sum_up"
--- @include "waits"
--- @include "window"

local permits, windowed, token = tonumber(ARGV[1]), string.find(ARGV[3], 'w'), ARGV[4]
local config, new, problem = config_or_new(redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime'), ARGV[2])
if problem then
  return problem
end
local rate, interval = config.rate, config.interval
if permits > rate then
  return {rate, 0, 0, interval, 0, 0}
end
local value_key, permits_key, places = pair_of(config)
local now, text = tonumber(clock()), redis.call('GET', value_key)
local value = integer(text)
if text and not value then
  return corrupt(places[1], 'value', 'is no integer: ' .. text)
end
local first = redis.call('ZRANGE', permits_key, 0, 0)[1]
local last = redis.call('ZRANGE', permits_key, '-1', '-1', 'WITHSCORES')
local newest, out = nil, redis.call('ZCOUNT', permits_key, '-inf', digits(now - interval))
if last[1] then
  newest = tonumber(last[2]) or math.huge
  local plain = value and not new and value <= rate and newest <= now and out == 0
  local rows = redis.call('ZRANGE', permits_key, 0, plain and 0 or 255)
  rows[#rows + 1] = last[1]
  local _
  _, problem = sum_of(rows, places[2])
  if problem then
    return problem
  end
end
local in_use = newest and newest > now - interval
local window = windowed
if value then
  window = is_window(value_key, permits_key, windowed, interval)
end

-- Where the value or the configuration was lost, the value is what the set leaves.
local free, used = value or rate, nil
if in_use and (new or not value) then
  local known, rest = string.match(token, '^used:(%d+);(.*)$')
  if known then
    used, token = tonumber(known), rest
  else
    local more
    used, more, problem = sum_up(permits_key, places[2], last[1], token)
    if not used then
      return problem or {'again', more}
    end
  end
  free = rate - used
  if value and window then
    free = math.min(free, value)
  end
end
free = math.min(free, rate)

-- What has run out is free, save of a window, all of which comes back at its end.
if not in_use then
  newest, window = nil, value and window and free < rate
  if not window then
    free = rate
  end
elseif not window and out > 0 and free < rate then
  local offset, freed, from = string.match(token, '^out:(%d+):(%d+):(.*)$')
  if from ~= first then
    offset, freed = '0', '0'
  end
  local page, sum = redis.call('ZRANGE', permits_key, offset, digits(math.min(offset + 255, out - 1))), nil
  sum, problem = sum_of(page, places[2])
  if problem then
    return problem
  end
  offset, freed = offset + #page, freed + sum
  if offset < out and free + freed < rate then
    local known = used and 'used:' .. digits(used) .. ';' or ''
    return {'again', known .. 'out:' .. digits(offset) .. ':' .. digits(freed) .. ':' .. first}
  end
  free = math.min(rate, free + freed)
end

-- A refusal finds what leaked, as in oldest_rows.
local rows = {}
if permits > free and in_use and not windowed then
  rows = redis.call('ZRANGE', permits_key, digits(out), digits(out + 256))
  local sum
  sum, problem = sum_of({rows[1]}, places[2])
  if problem then
    return problem
  end
  if string.find(ARGV[3], 'a') or free + sum < permits then
    sum, problem = sum_of(rows, places[2])
    if problem then
      return problem
    end
    if #rows <= 256 and not window then
      free = math.max(free, rate - sum)
    end
  else
    rows = {rows[1]}
  end
end

local ends = nil
if windowed or window then
  ends = redis.call('PTTL', value_key)
  if ends < 0 or ends > interval then
    ends = interval
  end
end
local taken = permits <= free and permits or 0
local state = {free = free, newest = newest and math.min(newest, now)}
local answer, left = figures_of(config, state, taken, nil, ends, now, windowed)
if taken == 0 then
  append_waits(answer, {permits}, ends and {} or rows, permits_key, left, interval, now, ends or interval)
  -- A row that is dated ahead counts from now on.
  local longest = math.max(1, interval)
  answer[#answer] = math.max(-longest, math.min(longest, answer[#answer]))
end
return answer
