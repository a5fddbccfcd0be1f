--- @include "config"

-- Reads the configuration from the fields that HMGET answered; at is as for parse_config. If the limiter has none, it is
-- still to be made from fallback, which is acquire's ARGV 3: its fields are returned beside it, the fifth being what the
-- limiter is to remember or nil. Returns config, new fields or nil; or nil, nil, error reply.
local function config_or_new(fields, fallback, at)
  local config, problem = parse_config(fields, at)
  if config or problem then
    return config, nil, problem
  end
  at = at or 0
  if fallback == '' then
    return nil, nil, redis.error_reply('NOTINIT ' .. at + 1 .. ' no rate is set')
  end
  if redis.call('EXISTS', KEYS[at + 1]) == 1 then
    return nil, nil, corrupt(at + 1, 'rate', 'is missing in a hash of other fields')
  end
  local rate, interval, kind, keep, began = string.match(fallback, '^(%d+) (%d+) (%d) (%d+) ?(%d*)')
  local new = {rate, interval, kind, keep, began ~= '' and fallback or nil}
  return parse_config(new, at), new
end
