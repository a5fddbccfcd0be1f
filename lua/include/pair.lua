-- Returns the value key and the permits key that a configuration uses, and a
-- table with the numbers of the two in KEYS. If only three keys are given, they are
-- those of a limiter of type Overall.
local function pair_of(config)
  local at = config.at
  if config.per_client then
    return KEYS[at + 3], KEYS[at + 5], {at + 3, at + 5}
  end
  return KEYS[at + 2], KEYS[at + 5] and KEYS[at + 4] or KEYS[at + 3], {at + 2, at + 4}
end
