-- Begins a script's writes and changes nothing. If memory is full, Redis refuses the first write, unless that frees.
local function first_write(permits_key, frees)
  if frees then
    redis.call('ZREM', permits_key, '')
  else
    redis.call('ZADD', permits_key, 'XX', 'GT', '-inf', '')
  end
end
