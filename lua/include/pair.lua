-- Returns the value key and the permits key that a configuration uses, and a
-- table with the numbers that the two have among a limiter's five keys. Where
-- only three are given, those are of a limiter of type Overall.
local function pair_of(config)
  if config.per_client then
    return KEYS[3], KEYS[5], {3, 5}
  end
  return KEYS[2], KEYS[5] and KEYS[4] or KEYS[3], {2, 4}
end
