-- Takes permits for one request of each of several limiters of type Overall, if the fast path decides.
--
-- KEYS, for each limiter
--   config  value  permits
-- ARGV
--   1  how many of the first limiters' requests may be refused; the others are granted here or not decided
--   2, 3, ...  member, permits for each limiter, as acquire takes them
-- Returns
--   for each limiter the permits granted, as acquire answers them; the wait in ms below 0; or 0 if acquire must decide

local call, overall, age, runs = redis.call, true, nil, nil
--- @include "now_text"

local function fast_path(config_key, value_key, permits_key, member, sum_text, flags)
--- @include "fast_path"
end

local answers, refusable = {}, tonumber(ARGV[1])
for i = 1, (#ARGV - 1) / 2 do
  -- An error of one limiter is for its own callers.
  local ok, answer = pcall(fast_path, KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i], ARGV[2 * i], ARGV[2 * i + 1],
    i > refusable and 'a' or nil)
  answers[i] = ok and answer or 0
end
return answers
