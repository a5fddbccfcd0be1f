-- Sets the rate of a limiter, whether or not it had one, and starts it full or keeps its permits in use.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1 rate  2 interval in ms  3 type  4 keepAliveTime in ms, 0 for none
--   5  '1' to keep the permits in use, if the type stays; 'w', the same, as for acquire
--   6  '1' to change nothing if the limiter has no rate, 'new' if it has one; a default, as acquire's ARGV 3, to change
--      nothing but another default, of a program that began before; 'for ' and ms to set it for so long, and then go back
--      to what the limiter has, or to the default that stands behind a space if it has none
--   7  '' or the token of the 'again' answer
-- Returns
--   1 when the rate was set, 0 when there was nothing to change, -1 when it is for a while and of another type, -2 when a
--      Redisson that can't read such a rate counts a window
--   'again', token   the call must be repeated
--   CORRUPT <key's number> <field> <why>, NOTINIT if there is nothing to go back to

--- @include "config_or_new" "clock" "other_default" "make_config"

if ARGV[6] == '1' and redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end

local windowed, now = ARGV[5] == 'w', tonumber(clock())
local span, fallback = string.match(ARGV[6], '^for (%d+) ?(.*)$')
local new = {ARGV[1], ARGV[2], ARGV[3], ARGV[4], not span and string.find(ARGV[6], ' ') and ARGV[6] or nil}
local config = parse_config(new)
config.windowed = windowed
local value_key, permits_key = config.value_key, config.permits_key
local keeps, old, made, problem = windowed or ARGV[5] == '1', nil, nil, nil
if keeps then
  local fields = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
  if span then
    old, made, problem = config_or_new(fields, fallback)
  else
    old, problem = parse_config(fields)
  end
  if problem then
    return problem
  elseif span and old.per_client ~= config.per_client then
    return -1
  elseif span and not made and is_window(old) then
    return -2
  end
  if ARGV[6] == 'new' and old or new[5] and not (old and other_default(fields, new[5], now) == 'older') then
    return 0
  elseif ARGV[6] == 'new' and redis.call('EXISTS', KEYS[1]) == 1 then
    return corrupt(1, 'rate', 'is missing in a hash of other fields')
  end
end
if not keeps or (old and old.per_client ~= config.per_client) then
  set_config(config, new, now, false, true)
  redis.call('HDEL', KEYS[1], 'lapsed')
  redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
  return 1
end

--- @include "bring_up_to_date" "recover_leaked"

if made then
  problem = make_config(old, made, now, ARGV[7], '')
  if problem then
    return problem
  end
elseif not old then
  return make_config(config, new, now, ARGV[7], '') or 1
end

local text = redis.call('GET', value_key)
local value = integer(text)
if text and not value then
  return corrupt(config.value_place, 'value', 'is no integer: ' .. text)
end

-- The difference of the rates goes to the value, as a debt if it falls below 0. What has run out by the new interval comes
-- back, and what is neither free nor in use then has leaked; if there are too many rows to know, later calls find it.
local rows = redis.call('ZRANGE', permits_key, 0, 256)
local few = #rows <= 256
if value then
  local used, wrong = sum_of(few and rows or {}, config.permits_place)
  if wrong then
    return wrong
  end
  -- In this order Lua counts exactly, up to the highest rate. A debt can't be larger than that.
  local kept = math.max(-9007199254740991, config.rate - (old.rate - math.min(value, old.rate)))
  -- A client's own value may belong to another rate than others have set since. Only the client
  -- raises it, as Redisson does with the value of all clients.
  if config.per_client then
    kept = math.min(kept, config.rate - used)
  end
  set_number(value_key, value, kept)
  text = digits(kept)
end
if few or not value then
  local state, answer = bring_up_to_date(config, text, now, 0, ARGV[7], '')
  if answer and (answer.err or not value) then
    return answer
  end
  if state and state.unset then
    first_write(permits_key)
    redis.call('UNLINK', value_key)
  elseif state and state.oldest then
    recover_leaked(config, state)
  end
end
if span then
  -- An override of an override has the same to go back to. Unused it lives until that is back.
  local base = old.base or {digits(old.rate), digits(old.interval), digits(old.keep)}
  config.keep = base[3] == '0' and 0 or math.max(config.interval, base[3] + span)
  new[2], new[4] = '0' .. new[2], digits(config.keep)
  redis.call('HSET', KEYS[1], 'override', digits(now + span) .. ' ' .. table.concat(base, ' '))
end
set_config(config, new, now, is_window(config), not span)
if config.interval < old.interval then -- holds may have run out by that: see settle_reservation
  redis.call('HSET', KEYS[1], 'lapsed', digits(now))
end
return 1
