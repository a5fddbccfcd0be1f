-- Returns when so many permits will be free, if no one takes or releases any.
-- Changes nothing.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  permits
--   2  '' or the token of the 'again' answer
-- Returns
--   ms, 0 if they are free now
--   'again', token   the call must be repeated
--   NOTINIT, CORRUPT <key's number> <field> <why>

--- @include "digits"
--- @include "integer"
--- @include "member"

--- @include "limiter"
local wanted = tonumber(ARGV[1])
local free = integer(redis.call('GET', value_key)) or config.rate
if free >= wanted then
  return 0
end

-- The rows before the offset stay the same ones as long as the first does: they
-- leave in order.
local first = redis.call('ZRANGE', permits_key, 0, 0)[1] or ''
local offset, freed, from = string.match(ARGV[2], '^wait:(%d+):(%d+):(.*)$')
if from ~= first then
  offset, freed = '0', '0'
end
offset, freed = tonumber(offset), tonumber(freed)
local rows = redis.call('ZRANGE', permits_key, digits(offset), digits(offset + 255))
for _, member in ipairs(rows) do
  local permits = permits_of(member)
  if not permits then
    return corrupt_member(config.permits_place, member)
  end
  freed = freed + permits
  if free + freed >= wanted then
    local score = math.min(tonumber(redis.call('ZSCORE', permits_key, member)), now)
    return math.max(0, score + config.interval - now)
  end
end
if #rows == 256 then
  return {'again', 'wait:' .. digits(offset + 256) .. ':' .. digits(freed) .. ':' .. first}
end
return config.interval
