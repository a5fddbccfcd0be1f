-- Takes an override back: one that has an end ends, and the rate counts as the default of a program that began before all
-- others: the next program that has another default replaces it.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
-- Returns
--   1 when the rate was an override, 0 when it was a default already
--   NOTINIT, CORRUPT <key's number> <field> <why>

--- @include "digits" "limiter"

local ends = config.base
if ends then
  redis.call('HSET', KEYS[1], 'override', '0 ' .. ends[1] .. ' ' .. ends[2] .. ' ' .. ends[3])
  config = parse_config(redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime'))
end
local kind = config.per_client and ' 1 ' or ' 0 '
local rate = digits(config.rate) .. ' ' .. digits(config.interval) .. kind .. digits(config.keep)
if string.find(redis.call('HGET', KEYS[1], 'default') or '', rate .. ' ', 1, true) == 1 then
  return ends and 1 or 0
end
redis.call('HSET', KEYS[1], 'default', rate .. ' 0')
return 1
