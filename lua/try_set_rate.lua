-- Gives a limiter its rate, unless it has one. All fields are written or none.
-- If only the configuration was lost, permits in use stay counted.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1 rate  2 interval in ms  3 type  4 keepAliveTime in ms, 0 for none
--   5  letters, or '': w, as for acquire
--   6  '' or the token of the 'again' answer
-- Returns
--   1 when the rate was set, 0 when there was one
--   'again', token   the call is to be repeated; nothing was changed
--   CORRUPT <key's number> <field> <why>

--- @include "config_or_new"

local fields = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local config, new, problem = config_or_new(fields, ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
if not new then
  return problem or 0
end

--- @include "clock"
--- @include "make_config"

config.windowed = ARGV[5] == 'w'
return make_config(config, new, tonumber(clock()), ARGV[6], '') or 1
