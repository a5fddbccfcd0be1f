-- The fast path decides the common cases with the fewest commands, of a limiter of type Overall: there are enough free
-- permits for all requests; or too few for any, and enough for each when the oldest member runs out. Once in a few
-- grants it leaves the decision to acquire's general path, which reclaims what has run out. This is the text of a
-- function, or of a script's head, which costs no closure: it returns the permits granted, or the wait below 0, and goes
-- on with the text behind it if it did not decide.
--
-- It works with call, config_key, value_key, permits_key, member, sum_text, now_text and overall: true if the limiter is
-- known to be of type Overall. Further with flags, age and runs, which are nil if empty: age is set with a token too, and
-- runs is ARGV, with the requests from 8 on if there are several. It leaves the value in value_text, if it was read, and
-- the configuration's fields in fields, "answered" only if it was read. Arithmetic turns text into numbers.
local value_text, fields = overall and call('GET', value_key), nil
if value_text == '0' and not flags and not age then
  -- A refusal changes nothing, whether the call was answered before or not.
  fields = call('HMGET', config_key, 'rate', 'interval', 'type', 'keepAliveTime')
else
  fields = call('HMGET', config_key, 'rate', 'interval', 'type', 'keepAliveTime', 'answered')
end
local rate_text, interval_text = fields[1], fields[2]
if not age and fields[3] == '0' and (not fields[4] or fields[4] == '0') and not fields[5] and rate_text and interval_text and
    (not flags or flags == 'a' or (flags == 'd' or flags == 'ad') and
      (string.find(ARGV[3], rate_text .. ' ' .. interval_text .. ' 0 0 ', 1, true) == 1 or not call('HGET', config_key, 'default'))) then
  value_text = value_text or call('GET', value_key)
  local rate, value, sum = 0, 0, sum_text + 0
  -- Of 15 digits Lua counts exactly. A rate of 0 is below any sum.
  if (value_text == '0' and string.find(rate_text .. ' ' .. interval_text, '^[1-9]%d* [1-9]%d*$') or value_text and
      string.find(rate_text .. ' ' .. interval_text .. ' ' .. value_text, '^[1-9]%d* [1-9]%d* [1-9]%d*$')) and
      #rate_text < 16 and #interval_text < 16 then
    rate, value = rate_text + 0, value_text + 0
  end

  if sum <= value and value <= rate then
    -- Members pile up by calls, however large each is.
    local step = (rate < 1024 and 16 or rate > 16384 and 256 or rate / 64) * (runs and sum or 1)
    -- If the set was lost, or the keys don't all have one time to live, the general path must decide. A new set gets it.
    local ttl = value % step >= sum and (value == rate or call('EXISTS', permits_key) == 1) and call('PTTL', config_key)
    local left = ttl and ttl >= 0 and ttl == call('PTTL', value_key) and call('PTTL', permits_key)
    if ttl and (ttl < 0 or ttl == left or left == -2) then
      if call('ZADD', permits_key, 'NX', now_text, member) == 1 then
        call('DECRBY', value_key, sum_text)
      end
      if left == -2 then
        -- Others may have set an end later than Redis can count by PEXPIRE.
        call('PEXPIRE', permits_key, string.format('%.0f', math.max(1, math.min(ttl, 9223372036854))))
      end
      return sum
    end
  elseif not flags then
    local least = runs and runs[8] + 0 or sum
    local most = least
    for i = 10, runs and #runs or 0, 2 do
      least, most = math.min(least, runs[i] + 0), math.max(most, runs[i] + 0)
    end
    local oldest = least > value and most <= rate and call('ZRANGE', permits_key, '0', '0', 'WITHSCORES') or {}
    local first = oldest[1]
    if first == member and (#member > 20 or oldest[2] + 100 >= now_text + 0) then
      return sum -- the request came twice: see own.lua
    end
    if first and #first == 21 and string.byte(first) == 16 and
        call('ZCOUNT', permits_key, '(' .. now_text, 'inf') == 0 then
      local wait = oldest[2] + interval_text - now_text
      local a, b, c, d = string.byte(first, 18, 21)
      if wait >= 1 and value + a + b * 256 + c * 65536 + d * 16777216 >= most then
        -- Shorter waits are not believed for longer than a second or so anyway.
        local life = wait > 64000 and call('PTTL', config_key) or -1
        return -(life >= 0 and math.max(1, math.min(wait, life)) or wait)
      end
    end
  end
end
