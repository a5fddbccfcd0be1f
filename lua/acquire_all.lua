-- Takes permits from each of several limiters, or none from any.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
--   6 to 10 the same of the second limiter, and so on
-- ARGV
--   1  member of the first permits set; without its permits it is the call's identity, and the members of the others
--      differ in their permits alone
--   2  permits, the same of each limiter; or those of each, with spaces between. Behind h the ms after which a member runs
--      out, if the interval is longer: '3h5000'
--   3  flags, or '': f, the figures are wanted; s, as for acquire
--   4  '' or, when the call may have run already, its age in ms  5  '' or the token of the 'again' answer
--   6, 7, ...  a limiter each: 'a' if its refusal looks for permits that leaked, 'd' as for acquire, and behind these,
--      as for acquire, its configuration if it has none
-- Returns
--   the permits of the first, if they were granted, no state was repaired and no figures are wanted; otherwise
--   keep, found, ..., number, wait, interval, ...   of each limiter the keep-alive time in ms, 0 for none, and what was
--      found, as for acquire; with f, each followed by rate, free, reset and interval, and the server's time before all;
--      then of limiters that refused them, none if they were granted: which one of those in KEYS, from 1; its
--      wait, as for acquire
--   'exceeds', number, rate   the limiter's rate, which is below the permits
--   'default', number, rate, ...   as for acquire, of the limiter of that number
--   'again', token   the call must be repeated; nothing was granted
--   'taken'   as for acquire
--   NOTINIT <number of its config>, CORRUPT <key's number> <field> <why>, LATE, as for acquire

--- @include "answered" "clock" "config_or_new" "figures" "grant" "make_config" "oldest_rows" "other_default" "own"
--- @include "search" "bring_up_to_date" "waits"

local single, figures, numbers, holds = string.find(ARGV[3], 's'), string.find(ARGV[3], 'f'), {}, {}
for number, hold in string.gmatch(ARGV[2], '(%d+)h?(%d*)') do
  numbers[#numbers + 1] = number
  holds[#holds + 1] = hold
end
local age, token, identity = ARGV[4], ARGV[5], string.sub(ARGV[1], 1, -5)
local now_text = clock()
local now = tonumber(now_text)

-- A repeat searches first: see search. Its place is behind the number of the limiter. The token of
-- another step has the step, the number of the limiter, and how far the step had come with it.
local began, since, place
if age ~= '' then
  began, since, place = search_of(token, now, age)
  token = since and '' or place
end
local step, number, rest = string.match(token, '^(%l+):(%d+):(.*)$')
number = tonumber(number or '0')
local prefix = age ~= '' and 'searched:' .. began .. ';' or ''

-- All limiters are read before any is changed. One's error is returned once it is known that the call has not run.
local limiters, problem, answered, missing, longest = {}, nil, 0, false, 0
for i = 1, #ARGV - 5 do
  local at = 5 * (i - 1)
  local fields = redis.call('HMGET', KEYS[at + 1], 'rate', 'interval', 'type', 'keepAliveTime', 'answered')
  local audit, compared, fallback = string.match(ARGV[5 + i], '^(a?)(d?)(.*)$')
  local l, new, wrong = config_or_new(fields, fallback, at)
  if compared == 'd' and l and not new and age .. token == '' and other_default(fields, fallback, now, at) == 'older' then
    return {'default', i, l.rate, l.interval, l.per_client and 1 or 0, l.keep}
  end
  if l then
    l.text = numbers[i] or numbers[1]
    local permits = tonumber(l.text)
    l.permits, l.member = permits, l.text == numbers[1] and ARGV[1] or with_permits(ARGV[1], permits)
    l.early = math.max(0, l.interval - (tonumber(holds[i] or holds[1]) or l.interval))
    l.new, l.list, l.audit, longest = new, fields[5], audit == 'a', math.max(longest, l.interval - l.early)
    wrong = permits > l.rate and {'exceeds', i, l.rate} or wrong
  end
  limiters[i] = l or false
  problem, missing = problem or wrong, missing or new
  answered = math.max(answered, was_answered(fields[5], identity) or 0)
end

-- A call looks at about so many rows, and at all that one limiter needs.
local budget = 512
local function spend(rows)
  budget = budget - math.min(rows, 256)
end

-- A call that has run left its member in every limiter. From some it may have gone since: one is proof of all.
local granted = false
if age ~= '' then
  local first, at = string.match(since and place or '', '^(%d+):(.*)$')
  local from = tonumber(first or '1')
  for i, l in ipairs(limiters) do
    if l and not l.new then
      local found, more
      if not since or i < from then
        found = find(l.permits_key, {l.member}, false, began - l.early)
      elseif budget > 0 then
        spend(redis.call('ZCARD', l.permits_key))
        local newest = l.early > 0 and digits(now - l.early) .. ':0:' or ''
        found, more = find(l.permits_key, {l.member}, false, since - l.early, i == from and at ~= '' and at or newest)
      else
        more = ''
      end
      if more then
        return {'again', 'find:' .. began .. ':' .. digits(since) .. ':' .. digits(i) .. ':' .. more}
      end
      if found then
        for _, other in ipairs(limiters) do
          if other and not other.new and answered == 0 then
            mark_answered(KEYS[other.at + 1], other.list, identity, now)
          end
        end
        if not figures then
          return tonumber(numbers[1])
        end
        granted = true
        break
      end
    end
  end
  if first and not granted then
    return {'again', prefix}
  end
elseif answered > 0 then
  return redis.error_reply('LATE the attempt has been answered')
end
if problem and not granted then
  return problem
end

-- Appends a limiter's figures to an answer, 0 if there is none: taken are the permits that it grants.
local function tell(answer, l, taken)
  local f, state = {0, 0, 0, 0, 0}, l and l.state
  if l then
    if (taken == 0 or l.early > 0) and not state.newest then
      local last = redis.call('ZRANGE', l.permits_key, '-1', '-1', 'WITHSCORES')[2]
      state.newest = last and math.min(last, now)
    end
    f = figures_of(l, state, taken, granted and taken or nil, state.window and end_window(l) or nil, l.early > 0, now)
  end
  answer[#answer + 1], answer[#answer + 2], answer[#answer + 3], answer[#answer + 4] = f[1], f[2], f[5], f[4]
end

-- A grant of an earlier run is answered with the figures of now.
if granted then
  local answer = {now}
  for _, l in ipairs(limiters) do
    answer[#answer + 1], answer[#answer + 2] = 0, 0
    if l then
      l.state = {free = integer(redis.call('GET', l.value_key)) or 0, window = is_window(l)}
    end
    tell(answer, l, l and l.permits)
  end
  return answer
end

-- No limiter is set up if another is damaged.
for _, l in ipairs(missing and limiters or {}) do
  local state, reply = read_state(l, redis.call('GET', l.value_key), now)
  if not state then
    return reply
  end
end

-- Renews the times to live of so many of the limiters, and returns the answer. That comes last: if
-- memory is full, Redis lets a script through that begins with it.
local function renew(count, answer)
  for i = 1, count do
    keep_ttl(limiters[i], true, (limiters[i].state or {window = is_window(limiters[i])}).window)
  end
  return answer
end

-- Those that earlier calls have set up are there by now.
for i, l in ipairs(limiters) do
  if l.new then
    if budget <= 0 then
      return {'again', prefix}
    end
    spend(redis.call('ZCARD', l.permits_key))
    problem = make_config(l, l.new, now, step == 'make' and i == number and rest or '', prefix .. 'make:' .. i .. ':')
    if problem then
      return problem
    end
  end
end

-- Those before the token's have been swept by the calls before.
local from, refused, repaired = step == 'update' and number or 0, {}, false
for i, l in ipairs(limiters) do
  local permits, text = l.permits, redis.call('GET', l.value_key)
  local permits_key = l.permits_key
  local value = integer(text)
  local enough = value and value <= l.rate and value >= permits and (value == l.rate or redis.call('EXISTS', permits_key) == 1)
  -- If there is enough the rows are read only once in a few permits, or always for those Redissons that must not find
  -- many that have run out.
  if enough and (i < from or not (single or figures) and value % 16 >= permits) then
    l.state = {free = value, window = is_window(l)}
  elseif budget <= 0 and refused[1] and not figures then
    break
  elseif budget <= 0 and i > from then -- each call goes further than the one before
    return renew(i - 1, {'again', prefix .. 'update:' .. i .. ':'})
  else
    local size, answer = redis.call('ZCARD', permits_key), nil
    if not value or redis.call('ZCOUNT', permits_key, '(' .. digits(now - l.interval), now_text) < size then
      spend(size)
    end
    l.state, answer = bring_up_to_date(l, text, now, single and math.huge or figures and l.rate or permits,
      step == 'update' and i == number and rest or '', prefix .. 'update:' .. i .. ':')
    local rows = {}
    if l.state and l.state.free < permits and l.state.oldest then
      rows, answer = oldest_rows(l, l.state, 0, {permits}, l.audit)
      spend(rows and #rows or 0)
    end
    if answer then
      return renew(i, answer)
    end
    local free = l.state.free
    repaired = repaired or l.state.repaired
    if free < permits then
      local ends = l.state.window and end_window(l)
      refused[#refused + 1] = i
      append_waits(l, refused, {permits}, rows, free, now, ends)
      refused[#refused + 1] = l.interval
    end
  end
end

-- It was refused before, or its permits have been given back since, unless they must have run out.
answered = answered > now - longest
if answered and not refused[1] then
  refused = {1, 1, limiters[1].interval}
end
for _, l in ipairs(limiters) do
  if redis.call('ZSCORE', l.permits_key, l.member) then
    if not is_own(l.permits_key, l.member, now - l.early) then
      return {'taken'}
    end
    refused, granted = {}, true
  end
end
local answer, tells = {figures and now or nil}, figures or repaired or refused[1]
for i, l in ipairs(limiters) do
  if not (refused[1] or granted) then
    write_grant(l, l.state, {digits(now - l.early), l.member}, l.text)
    l.state.newest = l.state.newest and math.max(l.state.newest, now - l.early)
  end
  keep_answered(KEYS[l.at + 1], l.list, identity, now, age ~= '' and not answered)
  if tells then
    answer[#answer + 1], answer[#answer + 2] = math.max(0, l.keep), l.state and l.state.repaired and 1 or 0
  end
  if figures then
    tell(answer, l, refused[1] and 0 or l.permits)
  end
end
renew(#limiters)
if not tells then
  return tonumber(numbers[1])
end
for _, figure in ipairs(refused) do
  answer[#answer + 1] = figure
end
return answer
