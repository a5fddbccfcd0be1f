-- Reads the rate of a limiter; as a script, so that a client that reads from replicas asks the master.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
-- Returns
--   rate, interval in ms, type, keepAliveTime in ms (0 for none); of an override that of what comes back, and behind it
--   the epoch ms of its end, and rate and interval that come back
--   NOTINIT, CORRUPT <key's number> <field> <why>

--- @include "limiter"
local base, kind = config.base, config.per_client and 1 or 0
if base then
  return {config.rate, config.interval, kind, tonumber(base[3]), tonumber(config.ends), tonumber(base[1]), tonumber(base[2])}
end
return {config.rate, config.interval, kind, config.keep}
