--- @include "member"
--- @include "pass_full_memory"

-- Takes permits off a member, which keeps its identity and its time; the whole
-- member goes when no permits are left on it.
local function take_off(permits_key, member, permits)
  local rest = permits_of(member) - permits
  if rest > 0 then
    pass_full_memory(permits_key)
    local score = redis.call('ZSCORE', permits_key, member)
    redis.call('ZADD', permits_key, score, with_permits(member, rest))
  end
  redis.call('ZREM', permits_key, member)
end
