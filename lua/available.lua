-- Returns how many permits are free, after giving back all that has run out.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
-- ARGV
--   1  '' or the token of the 'again' answer  2  flags, or '': w, as for acquire
-- Returns
--   free, below 0 while a lowered rate is paid off, and found, as for acquire
--   'again', token   the call must be repeated
--   NOTINIT, CORRUPT <key's number> <field> <why>

--- @include "bring_up_to_date" "recover_leaked" "limiter"

local windowed = ARGV[2] == 'w'
config.windowed = windowed
local state, answer = bring_up_to_date(config, redis.call('GET', value_key), now, config.rate, ARGV[1], '')
if not state then
  return answer
end
if windowed then
  end_window(config)
end
if state.unset and (config.per_client or redis.call('PTTL', KEYS[1]) >= 0) and not windowed then
  -- As Redisson does. But to Redisson before 3.13.3 a value without an end is a window that never ends.
  redis.call('SET', value_key, digits(state.free))
end
if state.oldest and not windowed then
  _, problem = recover_leaked(config, state)
  if problem then
    return problem
  end
end
keep_ttl(config, false, windowed or state.window)
return {state.free, state.repaired and 1 or 0}
