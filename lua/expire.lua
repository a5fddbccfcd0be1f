-- Gives all keys of a limiter one time to live, save a value that counts a
-- window: that ends by itself. A client's own keys go earlier where its idle time
-- is over before.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  PEXPIRE or PEXPIREAT  2  ms  3  letters, or '': w, as for acquire
-- Returns
--   1 when a key was there, else 0

--- @include "config"
--- @include "clock"
--- @include "kept_windows"
--- @include "lifetime"
--- @include "idle_time"

local ttl = tonumber(ARGV[2])
if ARGV[1] == 'PEXPIREAT' then
  ttl = ttl - tonumber(clock())
end

-- A moment that has passed would have Redis free the keys at once, however much
-- that is.
local function expire(key)
  if ttl <= 0 then
    return redis.call('UNLINK', key)
  end
  return redis.call(ARGV[1], key, ARGV[2])
end

local config = parse_config(redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime'))

-- A client's own keys that are not in use, the limiter being of type Overall or lost, live
-- no longer than they would have.
local function expire_own(key)
  local most = config and config.per_client and idle_time(config) or redis.call('PTTL', key)
  if most >= 0 and most < ttl then
    return redis.call('PEXPIRE', key, lifetime(most))
  end
  return expire(key)
end

local keep, keep_client = kept_windows(config, ARGV[3] == 'w')
local there = 0
there = math.max(there, expire(KEYS[1]))
there = math.max(there, keep and 1 or expire(KEYS[2]))
there = math.max(there, keep_client and 1 or expire_own(KEYS[3]))
there = math.max(there, expire(KEYS[4]))
there = math.max(there, expire_own(KEYS[5]))
return there
