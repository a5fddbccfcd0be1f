--- @include "dated"

-- Compares a configuration's fields with the default that a program has for the limiter, acquire's ARGV 3; at is as for
-- parse_config. The hash's field "default" is the one that made the limiter. Returns nil if the rate is the same, or was
-- set on purpose; 'older' if the program's default must replace the limiter's, and 'newer' if not. A program knows the
-- order of its own. One dated ahead by more than clocks may differ counts as the oldest: the server's clock went back.
local function other_default(fields, default, now, at)
  at = at or 0
  local mine, began, about, place = dated(default, now)
  local has = fields[1] .. ' ' .. fields[2] .. ' ' .. fields[3] .. ' ' .. (fields[4] or '0')
  if not mine or has == mine then
    return nil
  end
  local theirs, before, other = string.match(redis.call('HGET', KEYS[at + 1], 'default') or '', '^(%d+ %d+ %d %d+) (%d+)(.*)$')
  if theirs ~= has then
    return nil
  end
  local program, number = string.match(place, '^(.*%.)(%d+)$')
  if program and string.sub(other, 1, #program) == program then
    return tonumber(string.sub(other, #program + 1)) < tonumber(number) and 'older' or 'newer'
  end
  before = tonumber(before)
  return (before > (now + 2000) * 1000 or before < began - about) and 'older' or 'newer'
end
