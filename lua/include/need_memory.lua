-- Has Redis refuse the script here where memory is full: it looks only before a
-- script's first write, and lets through one that frees. Changes nothing.
local function need_memory(permits_key)
  redis.call('ZADD', permits_key, 'XX', 'GT', '-inf', '')
end
