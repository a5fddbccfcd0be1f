-- Takes an override back: the rate stays, but counts as the default of a program that began before all others: the next
-- program that has another default replaces it.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
-- Returns
--   1 when the rate was an override, 0 when it was a default already
--   NOTINIT, CORRUPT <key's number> <field> <why>

--- @include "config_or_new"

local fields = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime', 'default')
local _, _, problem = config_or_new(fields, '')
if problem then
  return problem
end
local rate = fields[1] .. ' ' .. fields[2] .. ' ' .. fields[3] .. ' ' .. (fields[4] or '0')
if string.find(fields[5] or '', rate .. ' ', 1, true) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'default', rate .. ' 0')
return 1
