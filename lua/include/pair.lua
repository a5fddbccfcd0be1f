-- Returns the value key and the permits key that a configuration uses, and a
-- table with the numbers of the two in KEYS.
local function pair_of(config)
  if config.per_client then
    return KEYS[3], KEYS[5], {3, 5}
  end
  return KEYS[2], KEYS[4], {2, 4}
end
