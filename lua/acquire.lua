-- Takes permits for one or more requests, in order: each gets all that it asks
-- for or nothing.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
--   Without 3 and 5 for a limiter that is known to be shared
-- ARGV, those at the end left out where they are empty
--   1  member of the permits set for the sum of all requests; without its
--      permits it is the attempt's identity. '' with w
--   2  the sum of all requests; 1 where it is left out
--   3  '' or the configuration for a limiter that has none:
--      'rate interval type keepAliveTime'
--   4  letters, or '': f, the figures are wanted, so that all that has run out is
--      reclaimed even if no request needs it; a, a refusal looks for permits
--      that leaked; s, each granted request gets a member of its own, the first
--      ARGV[1]'s id and the others those that come after it, and no member that
--      has run out stays; w, no members are kept: the value alone counts, for a
--      fixed window
--   5  '' or, when the attempt may have happened already, its age in ms
--   6  '' or the token of the 'again' answer
--   7  how many of the first requests stand in line: where one of them does not
--      fit, those behind it in the line are refused
--   8, 9, ...  permits, count: that many requests for so many permits each;
--      left out for one request for the sum
-- Returns
--   the permits granted, or the wait below 0, where it was one request and no
--   figures are wanted, of a shared limiter; else
--   rate, free, taken, interval, reset, keep, waits...; with w, the epoch ms at
--   which the window ends stands before the waits
--      free: free permits before, below 0 while a lowered rate is paid off
--      taken: the permits granted
--      reset: where the figures are wanted, ms until all permits are free again,
--      if nobody takes more
--      keep: the keep-alive time in ms, that this call started anew; 0 for none
--      waits: for each run of which a request was refused, save those behind
--      another in the line and those above the rate: the ms until it could
--      pass; negative where it is at least so long
--   'again', token   the call is to be repeated; nothing was granted
--   'taken'   another attempt has the same id; nothing was granted
--   'keys'   the limiter is not shared: all five are needed; nothing was granted
--   NOTINIT, CORRUPT <key's number> <field> <why>, LATE (an attempt that has
--   been answered already)

local call = redis.call
local time = call('TIME')
local now_text, part = time[1], time[2]
if #part < 6 then
  part = string.sub('00000' .. part, -6)
end
now_text = now_text .. string.sub(part, 1, 3)
local config_key, value_key, permits_key = KEYS[1], KEYS[2], KEYS[5] and KEYS[4] or KEYS[3]
local shared, member, sum_text, flags, age = not KEYS[5], ARGV[1], ARGV[2] or '1', ARGV[4], ARGV[5]

--- @include "fast_path"

if fields[5] == nil then
  fields[5] = call('HGET', config_key, 'answered')
end

--- @include "config"
--- @include "digits"
--- @include "pair"
--- @include "recount"
--- @include "settle"
--- @include "repay"
--- @include "find"
--- @include "answered"
--- @include "keep_ttl"
--- @include "give_ttl"

local fallback, token = ARGV[3] or '', ARGV[6] or ''
flags, age = flags or '', age or ''
local runs = ARGV
if not runs[8] then
  runs = {'', '', '', '', '', '', '0', sum_text, '1'}
end
local now = tonumber(now_text)
local config, problem = parse_config(fields)
if problem then
  return problem
end
local made = not config
if made then
  if fallback == '' then
    return redis.error_reply('NOTINIT no rate is set')
  end
  if redis.call('EXISTS', KEYS[1]) == 1 then
    return corrupt(1, 'rate', 'is missing in a hash of other fields')
  end
  local rate, interval, kind, keep = string.match(fallback, '^(%d+) (%d+) (%d) (%d+)$')
  fields = {rate, interval, kind, keep, false}
  config = parse_config(fields)
end
local rate, interval = config.rate, config.interval

if config.per_client and not KEYS[5] then
  return {'keys'}
end
local places
value_key, permits_key, places = pair_of(config)
if value_key ~= KEYS[2] or not value_text then
  value_text = redis.call('GET', value_key)
end

-- An attempt that may have happened is looked for before anything is changed. A
-- repeat that was answered without a trace was refused, or its permits have been
-- given back since.
local single, windowed = string.find(flags, 's'), string.find(flags, 'w')
local members = {ARGV[1]}
if single then
  members = {}
  for i = 8, #runs, 2 do
    for _ = 1, tonumber(runs[i + 1]) do
      members[#members + 1] = with_permits(later(ARGV[1], #members), tonumber(runs[i]))
    end
  end
end
local identity = string.sub(ARGV[1], 1, -5)
local answered = not windowed and was_answered(fields[5], identity)
local found = nil
local known, rest = string.match(token, '^found:(%d+);(.*)$')
if known then
  found, token = tonumber(known), rest
elseif age ~= '' then
  local more
  found, more = find(permits_key, members, single, now - tonumber(age), token)
  if more then
    return {'again', more}
  end
  if answered and not found then
    found = 0
  end
elseif answered then
  return redis.error_reply('LATE the attempt has been answered')
end

-- Walks the requests with that many free permits. Returns the permits granted;
-- the refused sizes in order, those that get a wait; how many more free permits
-- would have granted more; and the members of the granted requests, where each
-- has its own.
local function walk(free)
  local left, taken, refused, more, place, blocked = free, 0, {}, math.huge, 0, false
  local own = {}
  local line = tonumber(runs[7])
  for i = 8, #runs, 2 do
    local permits, count = tonumber(runs[i]), tonumber(runs[i + 1])
    local waits = place < line
    if (permits <= rate or found) and not (waits and blocked) then
      local granted = math.max(0, math.min(count, math.floor(left / permits)))
      left = left - granted * permits
      taken = taken + granted * permits
      for j = 1, single and granted or 0 do
        own[#own + 1] = members[place + j]
      end
      if granted < count then
        if permits <= rate then
          refused[#refused + 1] = permits
        end
        more = math.min(more, permits - left)
        blocked = blocked or waits
      end
    end
    place = place + count
  end
  return taken, refused, more, own
end

-- A request for more than the rate is none; the client tells its caller.
local need = 0
for i = 8, #runs, 2 do
  local permits = tonumber(runs[i])
  if permits <= rate then
    need = need + permits * tonumber(runs[i + 1])
  end
end
if found and found > 0 then
  -- Others may have released some of the attempt's permits. What it was granted
  -- is the least that the requests can come to.
  local taken, _, more = walk(found)
  for _ = 1, 1000 do
    if taken == found then
      break
    end
    found = found + more
    taken, _, more = walk(found)
  end
elseif need == 0 then
  if age ~= '' and not answered and not made then
    mark_answered(KEYS[1], fields[5], identity, now)
  end
  return {rate, 0, 0, interval, 0, 0}
end

local wanted = need
if single then
  wanted = math.huge -- nothing that has run out stays
elseif string.find(flags, 'f') then
  wanted = rate
elseif found then
  wanted = 0
end
if made then
  local more
  more, problem = recount(config, value_key, permits_key, places, now, token, windowed)
  if problem then
    return problem
  end
  if more then
    return {'again', found and 'found:' .. digits(found) .. ';' .. more or more}
  end
  local window = is_window(value_key, permits_key, windowed, interval)
  redis.call('HSET', KEYS[1], 'rate', fields[1], 'interval', fields[2], 'keepAliveTime', fields[4], 'type', fields[3])
  give_ttl(value_key, permits_key, nil, window)
  value_text = redis.call('GET', value_key)
end
local state
state, token, problem = settle(config, value_key, permits_key, places, value_text, now, wanted, token, windowed)
if problem then
  return problem
end
if token then
  keep_ttl(config, value_key, permits_key, true, windowed)
  return {'again', found and 'found:' .. digits(found) .. ';' .. token or token}
end

local free = state.free
local taken, refused, _, own = walk(found or free)

-- A refusal's wait mostly ends with the oldest member. Where that one has too
-- few permits more rows are looked at, and then leaked permits show.
local most = 0
for _, permits in ipairs(refused) do
  most = math.max(most, permits)
end
local rows = {}
if most > 0 and state.oldest and not windowed then
  rows[1] = state.oldest[1]
  local first = permits_of(rows[1])
  if not first then
    return corrupt_member(places[2], rows[1])
  end
  if string.find(flags, 'a') or free - taken + first < most then
    free, rows, problem = repay(config, value_key, permits_key, places, free)
    if problem then
      return problem
    end
    if not found then
      taken, refused, _, own = walk(free)
    end
  end
end

if not found and taken > 0 then
  local rows_to_add = {}
  if single then
    for _, member in ipairs(own) do
      if #member <= 20 and redis.call('ZSCORE', permits_key, member) then
        keep_ttl(config, value_key, permits_key, true, windowed or state.window)
        return {'taken'}
      end
      rows_to_add[#rows_to_add + 1] = now_text
      rows_to_add[#rows_to_add + 1] = member
    end
  elseif not windowed then
    rows_to_add = {now_text, digits(taken) == sum_text and ARGV[1] or with_permits(ARGV[1], taken)}
  end
  if state.unset then
    make_value(value_key, free, windowed, interval)
  end
  if windowed or redis.call('ZADD', permits_key, 'NX', unpack(rows_to_add)) > 0 then
    redis.call('DECRBY', value_key, digits(taken))
  end
end
if age ~= '' and not answered then
  mark_answered(KEYS[1], fields[5], identity, now)
else
  forget_answered(KEYS[1], fields[5], now)
end
local ends = nil
if windowed or state.window then
  ends = end_window(value_key, interval)
end
keep_ttl(config, value_key, permits_key, true, ends ~= nil)

local before, left = free, free - taken
if found then
  before, left = free + found, free
end
local reset = 0
if taken > 0 then
  reset = interval
elseif state.newest then
  reset = state.newest + interval - now
end
if ends and left < rate then
  reset = ends
end
local answer = {rate, before, taken, interval, reset, math.max(0, config.keep)}
if windowed then
  answer[7] = now + ends
end
-- What the oldest rows free is summed up once, for all refused sizes.
local sums, freed = {}, 0
for i, row in ipairs(refused[1] and not ends and rows or {}) do
  freed = freed + permits_of(row)
  sums[i] = freed
end
for _, permits in ipairs(refused) do
  local low, high = 1, #sums + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if left + sums[middle] >= permits then
      high = middle
    else
      low = middle + 1
    end
  end
  local wait = math.max(1, ends or interval)
  local row = not ends and (rows[low] or rows[257])
  if row then
    wait = math.max(1, tonumber(redis.call('ZSCORE', permits_key, row)) + interval - now)
    if low > #sums then
      wait = -wait
    end
  end
  answer[#answer + 1] = wait
end
return answer
