-- Dates a reservation, a grant with a member of its own, anew: it counts from now on, as if it were granted now. It has the
-- same effect however often it runs.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  the reservation's member, with the permits that were reserved
--   2  '' or, if the reservation is held, how many ms its member is dated before the grant
-- Returns
--   the epoch ms from which it counts; 0 if the reservation has come back, or others have taken permits off it
--   CORRUPT <key's number> <field> <why>

--- @include "clock" "config" "digits" "first_write" "keep_ttl" "window"

local config, problem = parse_config(redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime'))
if problem or not config then
  return problem or 0
end
local permits_key, now = config.permits_key, tonumber(clock())
local score = redis.call('ZSCORE', permits_key, ARGV[1])
if not score or tonumber(score) <= now - config.interval then
  return 0
end
local early = tonumber(ARGV[2]) or 0
local from = math.max(now, score + early)
first_write(permits_key, true)
redis.call('ZADD', permits_key, 'XX', digits(from - early), ARGV[1])
keep_ttl(config, true, is_window(config))
return from
