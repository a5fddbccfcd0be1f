-- Gives value and permits that time to live, or takes theirs away.
local function give_ttl(value_key, permits_key, ttl)
  if ttl then
    redis.call('PEXPIRE', value_key, ttl)
    redis.call('PEXPIRE', permits_key, ttl)
  else
    redis.call('PERSIST', value_key)
    redis.call('PERSIST', permits_key)
  end
end
