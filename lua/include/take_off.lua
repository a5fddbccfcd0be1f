--- @include "member"
--- @include "first_write"

-- Takes permits off a member, which keeps its identity and its time; the whole
-- member goes when no permits are left on it.
local function take_off(permits_key, member, permits)
  local rest = permits_of(member) - permits
  if rest > 0 then
    first_write(permits_key, true)
    local score = redis.call('ZSCORE', permits_key, member)
    redis.call('ZADD', permits_key, score, with_permits(member, rest))
  end
  redis.call('ZREM', permits_key, member)
end
