--- @include "make_value" "unpack"

-- Writes a grant: adds the members, each behind its time in added, and takes permits, as digits, off the value if they
-- are new.
local function write_grant(config, state, added, permits)
  if state.unset then
    make_value(config, state.free)
  end
  if config.windowed or redis.call('ZADD', config.permits_key, 'NX', unpack(added)) > 0 then
    redis.call('DECRBY', config.value_key, permits)
  end
end
