--- @include "digits"
--- @include "member"
--- @include "make_value"

-- Writes a grant of so many permits: the rows, and where that added them, the value.
-- state is settle's; own are the members of the granted requests where each has its
-- own, which single says, else ARGV[1] is written. sum_text is the sum of all
-- requests, windowed says that the value alone counts. Returns false where another
-- call has one of the members; then nothing is written.
local function grant(value_key, permits_key, interval, state, taken, own, single, now_text, sum_text, windowed)
  local rows_to_add = {}
  if single then
    for _, member in ipairs(own) do
      if #member <= 20 and redis.call('ZSCORE', permits_key, member) then
        return false
      end
      rows_to_add[#rows_to_add + 1] = now_text
      rows_to_add[#rows_to_add + 1] = member
    end
  elseif not windowed then
    rows_to_add = {now_text, digits(taken) == sum_text and ARGV[1] or with_permits(ARGV[1], taken)}
  end
  if state.unset then
    make_value(value_key, state.free, windowed, interval)
  end
  if windowed or redis.call('ZADD', permits_key, 'NX', unpack(rows_to_add)) > 0 then
    redis.call('DECRBY', value_key, digits(taken))
  end
  return true
end
