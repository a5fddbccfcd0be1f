-- Takes the same permits from each of several limiters, or none from any.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
--   6 to 10 the same of the second limiter, and so on
-- ARGV
--   1  member of each permits set; without its permits it is the call's
--      identity
--   2  permits
--   3  letters, or '': s, as for acquire
--   4  '' or, when the call may have run already, its age in ms
--   5  '' or the token of the 'again' answer
--   6, 7, ...  a limiter each: 'a' where its refusal looks for permits that
--      leaked, 'd' as for acquire, and behind these, as for acquire, its
--      configuration if it has none
-- Returns
--   the permits, where they were granted and no state was repaired; else
--   keep, ..., number, wait, interval, ...   of each limiter the keep-alive time
--      in ms, 0 for none, and where its state was repaired -1 less that; then of
--      limiters that refused them, none if they were granted: which one of those in
--      KEYS, from 1; the ms until it could grant them, negative where it is at least
--      so long
--   'exceeds', number, rate   the limiter's rate, which is below the permits
--   'default', number, rate, ...   as for acquire, of the limiter of that number
--   'again', token   the call is to be repeated; nothing was granted
--   'taken'   another call has the same id; nothing was granted
--   NOTINIT <number>, CORRUPT <key's number> <field> <why>, LATE (an attempt
--   that has been answered already)

-- To what is included, KEYS are those of the limiter whose turn it is.
local all, KEYS = KEYS, {}

--- @include "clock"
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
--- @include "other_default"

local member, permits = ARGV[1], tonumber(ARGV[2])
local single = string.find(ARGV[3], 's')
local age, token = ARGV[4], ARGV[5]
local identity = string.sub(member, 1, -5)
local now_text = clock()
local now = tonumber(now_text)

local function turn(i)
  local last = 5 * i
  KEYS = {all[last - 4], all[last - 3], all[last - 2], all[last - 1], all[last]}
end

-- All limiters are read before any is changed. What is wrong with one is said
-- once it is known that the call has not run.
local limiters, problem, answered = {}, nil, false
for i = 1, #all / 5 do
  turn(i)
  local fields = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime', 'answered')
  local config, wrong = parse_config(fields)
  local audit, compared, fallback = string.match(ARGV[5 + i], '^(a?)(d?)(.*)$')
  if config and compared == 'd' and age == '' and token == '' and other_default(fields, fallback, now) == 'older' then
    return {'default', i, config.rate, config.interval, config.per_client and 1 or 0, config.keep}
  end
  local l = {fields = fields, there = config, audit = audit == 'a'}
  if wrong then
    wrong = redis.error_reply((string.gsub(wrong.err, '^CORRUPT 1', 'CORRUPT ' .. digits(5 * i - 4))))
  elseif not config and fallback == '' then
    wrong = redis.error_reply('NOTINIT ' .. digits(i) .. ' no rate is set')
  elseif not config and redis.call('EXISTS', KEYS[1]) == 1 then
    wrong = corrupt(5 * i - 4, 'rate', 'is missing in a hash of other fields')
  elseif not config then
    local rate, interval, kind, keep, began = string.match(fallback, '^(%d+) (%d+) (%d) (%d+) ?(%d*)$')
    l.fields, l.default = {rate, interval, kind, keep, false}, began ~= '' and {'default', fallback} or {}
    config = parse_config(l.fields)
  end
  if config and permits > config.rate then
    wrong = {'exceeds', i, config.rate}
  end
  l.config = config
  limiters[i] = l
  problem = problem or wrong
  answered = answered or was_answered(fields[5], identity)
end

-- A call looks at about so many rows, and at all that one limiter has it look at.
local budget = 512
local function spend(rows)
  budget = budget - math.min(rows, 256)
end

-- A call that has run left its member in every limiter. From some it
-- may have gone since: one is proof of all.
if age ~= '' then
  local from, rest = string.match(token, '^find:(%d+):(.*)$')
  from = tonumber(from or token == '' and '1' or '0')
  for i, l in ipairs(limiters) do
    if l.there then
      turn(i)
      local _, permits_key = pair_of(l.config)
      local found, more
      if from > 0 and i >= from then
        if budget <= 0 then
          return {'again', 'find:' .. digits(i) .. ':'}
        end
        spend(redis.call('ZCARD', permits_key))
        found, more = find(permits_key, {member}, false, now - tonumber(age), i == from and rest or '')
      else
        found = find(permits_key, {member}, false, now - tonumber(age), 'done')
      end
      if more then
        return {'again', 'find:' .. digits(i) .. ':' .. more}
      end
      if found then
        for j, other in ipairs(limiters) do
          if other.there and not answered then
            turn(j)
            mark_answered(KEYS[1], other.fields[5], identity, now)
          end
        end
        return permits
      end
    end
  end
elseif answered then
  return redis.error_reply('LATE the attempt has been answered')
end
if problem then
  return problem
end

-- Returns the ms until so many permits are free, if nobody takes or releases
-- any, by the oldest rows; negative where it is at least so long.
local function wait_for(permits_key, interval, free, rows)
  for i, row in ipairs(rows) do
    free = free + permits_of(row)
    if free >= permits or i == 257 then
      local wait = math.max(1, tonumber(redis.call('ZSCORE', permits_key, row)) + interval - now)
      return free < permits and -wait or wait
    end
  end
  return math.max(1, interval)
end

-- Returns the numbers in all of keys that have these in a limiter's own.
local function among_all(i, places)
  return {places[1] + 5 * (i - 1), places[2] + 5 * (i - 1)}
end

-- None is set up beside one that is damaged.
local missing = false
for _, l in ipairs(limiters) do
  missing = missing or not l.there
end
for i, l in ipairs(missing and limiters or {}) do
  turn(i)
  local value_key, permits_key, places = pair_of(l.config)
  local text = redis.call('GET', value_key)
  if text and not integer(text) then
    return corrupt(among_all(i, places)[1], 'value', 'is no integer: ' .. text)
  end
  local _
  _, problem = sum_of({redis.call('ZRANGE', permits_key, 0, 0)[1], redis.call('ZRANGE', permits_key, -1, -1)[1]}, among_all(i, places)[2])
  if problem then
    return problem
  end
end

-- Those that earlier calls have set up are there by now.
local made, counted = string.match(token, '^make:(%d+):(.*)$')
for i, l in ipairs(limiters) do
  if not l.there then
    turn(i)
    local value_key, permits_key, places = pair_of(l.config)
    if budget <= 0 then
      return {'again', ''}
    end
    spend(redis.call('ZCARD', permits_key))
    local more
    more, problem = recount(l.config, value_key, permits_key, among_all(i, places), now, i == tonumber(made) and counted or '')
    if problem then
      return problem
    end
    if more then
      return {'again', 'make:' .. digits(i) .. ':' .. more}
    end
    local window = is_window(value_key, permits_key, false, l.config.interval)
    redis.call('HSET', KEYS[1], 'rate', l.fields[1], 'interval', l.fields[2], 'keepAliveTime', l.fields[4], 'type', l.fields[3],
      unpack(l.default))
    give_ttl(value_key, permits_key, nil, window, l.config.interval)
    keep_ttl(l.config, value_key, permits_key, true, window)
  end
end

-- Renews the time to live of limiters. That comes last: if memory is full, Redis lets a
-- script through that begins with it.
local function renew(first, last)
  for i = first, last do
    turn(i)
    local l = limiters[i]
    local value_key, permits_key = pair_of(l.config)
    local window = l.window
    if window == nil then
      window = is_window(value_key, permits_key, false, l.config.interval)
    end
    keep_ttl(l.config, value_key, permits_key, true, window)
  end
end

-- Those before the token's have been swept by the calls before.
local at, rest = string.match(token, '^settle:(%d+):(.*)$')
at = tonumber(at or '0')
local refused, repaired = {}, false
for i, l in ipairs(limiters) do
  turn(i)
  local value_key, permits_key, places = pair_of(l.config)
  places = among_all(i, places)
  local rate, interval = l.config.rate, l.config.interval
  local text = redis.call('GET', value_key)
  local value = integer(text)
  local enough = value and value <= rate and value >= permits and (value == rate or redis.call('EXISTS', permits_key) == 1)
  -- Where there is enough the rows need no look, save once in a few permits, or
  -- always for those Redissons that must not find many that have run out.
  if enough and (i < at or not single and value % 16 >= permits) then
    l.state = {free = value}
  elseif budget <= 0 and refused[1] then
    break
  elseif budget <= 0 then
    renew(1, i - 1)
    return {'again', 'settle:' .. digits(i) .. ':'}
  else
    local size = redis.call('ZCARD', permits_key)
    if not value or redis.call('ZCOUNT', permits_key, '(' .. digits(now - interval), now_text) < size then
      spend(size)
    end
    local more
    l.state, more, problem = settle(l.config, value_key, permits_key, places, text, now, single and math.huge or permits,
      i == at and rest or '')
    l.window = l.state and l.state.window or false
    if problem or more then
      renew(1, i)
      return problem or {'again', 'settle:' .. digits(i) .. ':' .. more}
    end
    local free, rows = l.state.free, {}
    if free < permits and l.state.oldest then
      rows[1] = l.state.oldest[1]
      local first = permits_of(rows[1])
      if l.audit or not first or free + first < permits then
        spend(redis.call('ZCARD', permits_key))
        free, rows, problem = repay(l.config, value_key, permits_key, places, free)
        if problem then
          renew(1, i)
          return problem
        end
      end
    end
    l.repaired = l.state.repaired or free > l.state.free
    repaired = repaired or l.repaired
    if free < permits then
      refused[#refused + 1] = i
      refused[#refused + 1] = l.state.window and math.max(1, end_window(value_key, interval)) or
        wait_for(permits_key, interval, free, rows)
      refused[#refused + 1] = interval
    end
  end
end

if answered and not refused[1] then
  -- It was refused before, or its permits have been given back since.
  refused = {1, 1, limiters[1].config.interval}
end
if not refused[1] then
  for i, l in ipairs(limiters) do
    turn(i)
    local _, permits_key = pair_of(l.config)
    if redis.call('ZSCORE', permits_key, member) then
      -- Long ids are this call's own: a copy of it has been granted.
      return #member <= 20 and {'taken'} or permits
    end
  end
end
for i, l in ipairs(limiters) do
  turn(i)
  local value_key, permits_key = pair_of(l.config)
  if not refused[1] then
    if l.state.unset then
      make_value(value_key, l.state.free, false, l.config.interval)
    end
    redis.call('ZADD', permits_key, 'NX', now_text, member)
    redis.call('DECRBY', value_key, ARGV[2])
  end
  if age ~= '' and not answered then
    mark_answered(KEYS[1], l.fields[5], identity, now)
  else
    forget_answered(KEYS[1], l.fields[5], now)
  end
  renew(i, i)
end
if not refused[1] and not repaired then
  return permits
end
local answer = {}
for i, l in ipairs(limiters) do
  local keep = math.max(0, l.config.keep)
  answer[i] = l.repaired and -1 - keep or keep
end
for _, figure in ipairs(refused) do
  answer[#answer + 1] = figure
end
return answer
