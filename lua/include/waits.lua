--- @include "member"

-- Appends to an answer, for each refused size in order, the ms until so many permits are free, if no one takes or
-- releases any: until enough of the rows, which are the oldest, have run out, if left are free now. If these are not
-- enough it is at least so long, or the interval if no more are in use: by then all is free. ends is nil or the ms until
-- a window ends, which frees all. No wait is longer than the limiter lives, if requests don't keep it alive, or its override.
local function append_waits(config, answer, refused, rows, left, now, ends)
  rows = ends and {} or rows
  local life = config.keep > 0 and -1 or redis.call('PTTL', KEYS[config.at + 1])
  if config.base then -- another rate comes then
    life = life >= 0 and math.min(life, config.left) or config.left
  end
  -- The permits of the rows are summed up once, for all sizes.
  local sums, freed = {}, 0
  for i, row in ipairs(rows) do
    freed = freed + permits_of(row)
    sums[i] = freed
  end
  for _, permits in ipairs(refused) do
    local low, high = 1, #sums + 1
    while low < high do
      local middle = math.floor((low + high) / 2)
      if left + sums[middle] >= permits then
        high = middle
      else
        low = middle + 1
      end
    end
    local row = rows[low] or rows[257]
    local wait = row and redis.call('ZSCORE', config.permits_key, row) + config.interval - now or ends or config.interval
    answer[#answer + 1] = math.max(1, life >= 0 and math.min(wait, life) or wait)
  end
end
