-- Gives value and permits that time to live, or takes theirs away; a value that
-- counts a window keeps its own.
local function give_ttl(value_key, permits_key, ttl, window)
  if ttl then
    if not window then
      redis.call('PEXPIRE', value_key, ttl)
    end
    redis.call('PEXPIRE', permits_key, ttl)
  else
    if not window then
      redis.call('PERSIST', value_key)
    end
    redis.call('PERSIST', permits_key)
  end
end
