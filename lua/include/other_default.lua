--- @include "dated"

-- Compares a configuration's fields with the default that a program has for the limiter, acquire's ARGV 3; at is as for
-- parse_config. The hash's field "default" is the one that made the limiter. Returns nil if the rate is the same, or was
-- set on purpose; 'older' if the program's default must replace the limiter's, and 'newer' if not. One dated in the
-- future counts as the oldest: an earlier version noted it, of a program whose clock was wrong.
local function other_default(fields, default, now, at)
  at = at or 0
  local mine, began, about = dated(default, now)
  local has = fields[1] .. ' ' .. fields[2] .. ' ' .. fields[3] .. ' ' .. (fields[4] or '0')
  if not mine or has == mine then
    return nil
  end
  local theirs, before = string.match(redis.call('HGET', KEYS[at + 1], 'default') or '', '^(.*) (%d+)$')
  if theirs ~= has then
    return nil
  end
  before = tonumber(before)
  return (before > (now + 60000) * 1000 or before < began - about) and 'older' or 'newer'
end
