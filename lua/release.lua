-- Gives permits back before their interval is over: off the newest members, first off those of this client.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  permits  2  how the identities of this client's members begin, in layout D
--   3  '' or the token of the 'again' answer
--   4  '' or, if this client's may stand behind the newest 256, 'own': nothing is taken off others' members as long as
--      there are more than these; or 'own:' and the place of a member: of the 256 from there on only this client's
--   5  the call's identity: if the request comes twice, the second gives nothing back
-- Returns
--   the permits that were not in use, 0 for none, when all is done
--   'again', token, permits   the call must be repeated for that many permits
--   'again', 'search', permits   the same, elsewhere: here this client has no more
--   NOTINIT, CORRUPT <key's number> <field> <why>

--- @include "answered" "bring_up_to_date" "rows" "take_off" "limiter"

-- The config's field "released" is the last call, in hex, and its answer: "call=answer;". With more than 64 bytes the
-- hash would take eight times the memory.
local name = hex(ARGV[5])
local word, given = string.match(redis.call('HGET', KEYS[1], 'released') or '', name .. '=(%l*)(%d+);')
if given then
  return word == '' and tonumber(given) or {'again', word, tonumber(given)}
end
_, problem = sum_of(redis.call('ZRANGE', permits_key, -256, -1), config.permits_place)
if problem then
  return problem
end
local state, answer = bring_up_to_date(config, redis.call('GET', value_key), now, 0, ARGV[3], '', true)
if not state then
  return answer.err and answer or {'again', answer[2], tonumber(ARGV[1])}
end
keep_ttl(config, true, state.window)
if not state.newest then
  return tonumber(ARGV[1])
end

-- What has run out is no longer in use.
local own, place = string.match(ARGV[4], '^(own):?(.*)$')
local rows, first = rows_from(permits_key, place or '', 256)
_, problem = sum_of(rows, config.permits_place)
if problem then
  return problem
end
local out = redis.call('ZCOUNT', permits_key, '-inf', digits(now - config.interval))
local oldest = math.max(1, out - first + 1)
own = own and (place ~= '' or first > out)

-- No more than 128 of them, so that a call stays short.
local left, emptied = tonumber(ARGV[1]), {}
local function take_from(mine)
  for i = #rows, oldest, -1 do
    local member = rows[i]
    if left > 0 and #emptied < 128 and mine == (string.sub(member, 2, 1 + #ARGV[2]) == ARGV[2]) then
      local permits = permits_of(member)
      if permits <= left then
        emptied[#emptied + 1] = member
      else
        take_off(permits_key, member, left)
      end
      left = math.max(0, left - permits)
    end
  end
end
take_from(true)
if not own then
  take_from(false)
end
if emptied[1] then
  redis.call('ZREM', permits_key, unpack(emptied))
end

local rest = redis.call('ZCARD', permits_key)
local free = state.free + (tonumber(ARGV[1]) - left)
free = (free > config.rate or rest == 0 and not state.window) and config.rate or free
set_number(value_key, state.free, free)
word = left > 0 and rest > out and (own and #emptied < 128 and 'search' or 'again') or ''
redis.call('HSET', KEYS[1], 'released', name .. '=' .. word .. digits(left) .. ';')
return word == '' and left or {'again', word, left}
