-- Moves a limiter to another name, replacing what was there.
--
-- KEYS
--   1 config  2 value  3 client's value  4 permits  5 client's permits
--   6 to 10 the same of the new name
-- ARGV
-- Returns
--   1
--   NOTINIT, CORRUPT <key's number> <field> <why>

--- @include "limiter"

-- RENAME would free what it replaces at once, however large it is.
local function move(from, to)
  redis.call('UNLINK', to)
  if redis.call('EXISTS', from) == 1 then
    redis.call('RENAME', from, to)
  end
end
move(KEYS[1], KEYS[6])
move(KEYS[2], KEYS[7])
move(KEYS[3], KEYS[8])
move(KEYS[4], KEYS[9])
move(KEYS[5], KEYS[10])
return 1
