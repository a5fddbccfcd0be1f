-- Reads the rate of a limiter; as a script, so that a client that reads from replicas asks the master.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
-- Returns
--   rate, interval in ms, type, keepAliveTime in ms (0 for none)
--   NOTINIT, CORRUPT <key's number> <field> <why>

--- @include "limiter"
return {config.rate, config.interval, config.per_client and 1 or 0, config.keep}
