-- Begins a script's writes and changes nothing. Redis looks at memory only before a
-- script's first write: if memory is full it refuses the script, unless that write
-- frees.
local function first_write(permits_key, frees)
  if frees then
    redis.call('ZREM', permits_key, '')
  else
    redis.call('ZADD', permits_key, 'XX', 'GT', '-inf', '')
  end
end
