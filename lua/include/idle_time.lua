-- Returns how many ms a client's own pair lives after its last use: by then all is free.
local function idle_time(config)
  return math.max(1, config.keep > 0 and config.keep or config.interval)
end
