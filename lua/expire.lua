-- Gives all keys of a limiter one time to live or takes it away, except from a value that counts a window: that ends by
-- itself. A client's own keys go earlier if its idle time is over before.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  PEXPIRE, PEXPIREAT, or PERSIST to take it away  2  ms, 0 with PERSIST  3  flags, or '': w, as for acquire
-- Returns
--   1 when a key was there, with PERSIST when the limiter had a time to live; otherwise 0

--- @include "config" "clock" "window" "idle_time"

local config = parse_config(redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime'))
local persist, windowed = ARGV[1] == 'PERSIST', ARGV[3] == 'w'
local ttl = persist and math.huge or tonumber(ARGV[2]) - (ARGV[1] == 'PEXPIREAT' and tonumber(clock()) or 0)

-- Expires a key. If the limiter is of type Overall or lost, a client's own are not in use and live no longer than they
-- would have. A moment that has passed would make Redis free a key at once, however large it is.
local function expire(key, own)
  local most = own and (config and config.per_client and idle_time(config) or redis.call('PTTL', key)) or -1
  if most >= 0 and most < ttl then
    return redis.call('PEXPIRE', key, lifetime(most))
  elseif persist then
    return redis.call('PERSIST', key)
  elseif ttl <= 0 then
    return redis.call('UNLINK', key)
  end
  return redis.call(ARGV[1], key, ARGV[2])
end

-- A window keeps its end; that of the pair in use one that it can have: by a clock that was set back it would be later.
local shared = parse_config({'0', config and digits(config.interval) or '0', '0'})
shared.windowed = windowed
local window, own_window = is_window(shared), windowed and redis.call('PTTL', KEYS[3]) ~= -2
if config and (config.per_client and own_window or not config.per_client and window) then
  end_window(config)
end
window, own_window = window and redis.call('PTTL', KEYS[2]) ~= -1, own_window and redis.call('PTTL', KEYS[3]) ~= -1

local had = persist and 0 or 1
local there = math.max(expire(KEYS[1]), window and had or expire(KEYS[2]), expire(KEYS[4]))
local own = math.max(own_window and had or expire(KEYS[3], true), expire(KEYS[5], true))
return persist and there or math.max(there, own)
