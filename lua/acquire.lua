-- Takes permits for one or more requests, in order: each gets all that it asks for or nothing.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
--   Without 3 and 5 for a limiter that is known to be of type Overall
-- ARGV, empty ones at the end left out
--   1  member of the permits set for the sum of all requests; without its permits it is the call's identity. '' with w
--   2  the sum of all requests; 1 if it is left out
--   3  '' or the configuration for a limiter that has none: 'rate interval type keepAliveTime', and for a default that
--      the limiter must remember ' began program.number age': see dated
--   4  flags, or '': f, the figures are wanted, so that all that has run out is reclaimed even if no request needs it;
--      a, a refusal looks for permits that leaked; s, each granted request gets a member of its own, the first ARGV[1]'s
--      id and the others those that come after it, and no member that has run out stays; w, no members are kept: the
--      value alone counts, for a fixed window; u, there is one request, which takes as many permits as are free, at most
--      the sum; d, ARGV[3] is compared with the default that the limiter has; last h, with s, and for each request the ms
--      after which its member runs out, if the interval is longer, or 0, with commas between; the last counts for the rest
--   5  '' or, when the call may have run already, its age in ms  6  '' or the token of the 'again' answer
--   7  how many of the first requests stand in line: if one of them does not fit, those behind it in the line are refused
--   8, 9, ...  permits, count: that many requests for so many permits each; left out for one request for the sum
-- Returns
--   the permits granted, if that is the sum, or below 0 the wait of each request, if all are refused for the same; of a
--   limiter of type Overall, if no figures are wanted. Otherwise
--   rate, free, taken, interval, reset, keep, found, waits...; with w, the epoch ms of the window's end stands before the
--   waits, with h the server's time
--      free: free permits before, below 0 while a lowered rate is paid off
--      taken: the permits granted
--      reset: if the figures are wanted, ms until all permits are free again, if no one takes more
--      keep: the keep-alive time in ms, which this call restarted; 0 for none
--      found: the sum of 1 if state was repaired, 2 if the limiter is shared with Redissons that the caller's layout
--      excludes, and 4 if it has the default of a program that began later
--      waits: for each run with a refused request, except those behind another in the line and those above the rate: the
--      ms until it could pass, or at least so long if many members are in use. It is no longer than the limiter lives,
--      but one of up to 64 s by itself below 0 may be
--   'again', token   the call must be repeated; nothing was granted
--   'taken'   another call has the same id; nothing was granted
--   'keys'   the limiter is not of type Overall: all five are needed; nothing was granted
--   'default', rate, interval, type, keepAliveTime   it has another default, of a program that began before: set_rate
--      must replace it; nothing was granted
--   NOTINIT, CORRUPT <key's number> <field> <why>, LATE (an attempt that has been answered already)

local call = redis.call
--- @include "now_text"
local config_key, value_key, permits_key = KEYS[1], KEYS[2], KEYS[5] and KEYS[4] or KEYS[3]
local overall, member, sum_text, runs = not KEYS[5], ARGV[1], ARGV[2] or '1', ARGV[8] and ARGV
local flags = ARGV[4] ~= '' and ARGV[4] or nil -- '' is true in Lua
local age = (ARGV[5] ~= '' or ARGV[6] ~= '') and ARGV[5] or nil

--- @include "fast_path"

if fields[5] == nil then
  fields[5] = call('HGET', config_key, 'answered')
end

-- The general path. Steps that not every call takes are included at their place: making a function costs, called or not.
--- @include "config_or_new" "dated" "own" "requests" "answered" "bring_up_to_date" "figures" "grant"

flags, age = flags or '', age or ''
local single, windowed, up_to = string.find(flags, 's'), string.find(flags, 'w'), string.find(flags, 'u')
local now, list, identity = tonumber(now_text), fields[5], string.sub(ARGV[1], 1, -5)

local config, new, problem = config_or_new(fields, ARGV[3] or '')
if problem then
  return problem
end
local rate, interval, holds = config.rate, config.interval, string.match(flags, 'h([%d,]+)$')
config.windowed = windowed
if config.per_client and not KEYS[5] then
  return {'keys'}
end
local default
if string.find(flags, 'd') and not new and age .. (ARGV[6] or '') == '' then
--- @include "other_default"
  default = other_default(fields, ARGV[3], tonumber(now_text))
  if default == 'older' then
    return {'default', rate, interval, config.per_client and 1 or 0, config.keep}
  end
end
value_key, permits_key = config.value_key, config.permits_key
if config.per_client or config.left or not value_text then
  value_text = redis.call('GET', value_key)
end

local requests = read_requests(sum_text, single, up_to, rate, holds, interval, now_text)
local answered = not windowed and was_answered(list, identity)
local found, token, more, prefix = nil, ARGV[6] or '', nil, ''
local known, rest = string.match(token, '^found:(%d+);(.*)$')
if known then
  found, token = tonumber(known), rest
elseif age ~= '' then
--- @include "search"
  found, more, prefix, token = search(permits_key, requests.members, single and not up_to, token, now, age, requests.early)
  if more then
    return {'again', more}
  end
  -- A repeat that was answered without a trace was refused, or its permits have been given back or have run out since. If
  -- they must have run out, it is decided anew.
  if answered and not found then
    local early = requests.early and math.min(unpack(requests.early.spans)) or 0
    answered = now - answered < interval - early
    found = answered and 0 or nil
  end
end
if answered and not found then
  return redis.error_reply('LATE the attempt has been answered')
end
local noted, need = age ~= '' and not answered, requests.sum
if found and found > 0 then
  -- Others may have released some of it, or a shorter hold is over: it is the least that the requests can get, and those
  -- whose members were found.
  for _ = 1, 1000 do
    local taken, _, lacks, own = walk_requests(requests, rate, found, true)
    local last = own[1] and requests.members[requests.members.last or 0]
    if lacks == math.huge or taken == found and not (last and number_of(own[#own]) < number_of(last)) then
      break
    end
    found = found + lacks
  end
elseif need == 0 then
  if noted and not new then
    mark_answered(KEYS[1], list, identity, now)
  end
  return {rate, 0, 0, interval, 0, 0, 0}
end

-- If each has a member of its own, nothing that has run out stays. A token has what was found.
prefix = found and 'found:' .. digits(found) .. ';' or prefix
if new then
--- @include "make_config"
  problem = make_config(config, new, now, token, prefix)
  if problem then
    return problem
  end
  value_text = redis.call('GET', value_key)
end
need = single and math.huge or string.find(flags, 'f') and rate or found and 0 or need
local state, reply = bring_up_to_date(config, value_text, now, need, token, prefix)
if not state then
  return reply
end

-- Free permits that are found when there are too few may change the decision.
local taken, refused, _, own = walk_requests(requests, rate, found or state.free, found)
local rows, each = {}, single and not up_to and requests.members
if not found and (refused[1] or each and each[2] or up_to and taken < sum_text + 0) and state.oldest and not windowed then
  -- If the request came twice, the first has taken what is missing. A request's own member is known by
  -- its name, one for all by its id: it is one of the newest.
  local seen = each or redis.call('ZSCORE', permits_key, ARGV[1]) and {ARGV[1]} or redis.call('ZRANGE', permits_key, '-8', '-1')
  for i, row in ipairs(seen) do
    local known = each and redis.call('ZSCORE', permits_key, row) or
      not each and #row == #ARGV[1] and with_permits(row, permits_of(ARGV[1])) == ARGV[1]
    if known and is_own(permits_key, row, each and requests.dates[i] or now) then
      found = (found or 0) + permits_of(row)
    end
  end
  if found then
    taken, refused, _, own = walk_requests(requests, rate, found, true)
  end
end
if (refused[1] or up_to and taken < sum_text + 0) and state.oldest and not windowed then
--- @include "oldest_rows"
  local free = state.free
  rows, problem = oldest_rows(config, state, taken, refused, string.find(flags, 'a'))
  if problem then
    return problem
  end
  if not found and state.free > free then
    taken, refused, _, own = walk_requests(requests, rate, state.free)
  end
end

if not found and taken > 0 then
  local whole = single or windowed or digits(taken) == sum_text
  local added = single and own or {now_text, whole and ARGV[1] or with_permits(ARGV[1], taken)}
  for i = 2, single and #own or 0, 2 do
    if not is_own(permits_key, own[i], own[i - 1]) then
      keep_ttl(config, true, windowed or state.window)
      return {'taken'}
    end
    state.newest = math.max(state.newest or 0, own[i - 1] + 0)
  end
  write_grant(config, state, added, digits(taken))
end
keep_answered(KEYS[1], list, identity, now, noted)
local ends = (windowed or state.window) and end_window(config) or nil
keep_ttl(config, true, ends ~= nil)

local answer, left = figures_of(config, state, taken, found, ends, holds, now)
answer[8] = holds and now or answer[8]
local first, length = state.oldest and state.oldest[1], #ARGV[1]
local foreign = state.window and not windowed or
  first and #first ~= length and not (#first == 13 and length == 21 or #first == 21 and length == 13)
answer[7] = (state.repaired and 1 or 0) + (foreign and 2 or 0) + (default and 4 or 0)
if refused[1] then
--- @include "waits"
  append_waits(config, answer, refused, rows, left, now, ends)
end
return answer
