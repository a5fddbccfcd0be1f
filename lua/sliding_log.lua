-- Takes permits of a sliding log for one or more requests, in order: each gets
-- all that it asks for or nothing.
--
-- KEYS
--   1 log: a sorted set, a member for each permit taken, its score the epoch ms
--   2 thresholds: a hash, limits by the names of logs. Left out if ARGV[1] is
--     the limit
-- ARGV
--   1  limit if thresholds has none
--   2  window in ms
--   3  field of thresholds
--   4  id of the call, which begins the names of its members
--   5  '1' if the call may have run already, else ''
--   6, 7, ...  permits, count: that many requests for so many permits each
-- Returns
--   limit, free, taken, 0, reset, waits...
--      free: free permits before
--      taken: the permits granted; their members are id:0, id:1, ...
--      reset: ms until all permits are free again; 0 if they are
--      waits: for each run of which a request was refused, save those above the
--      limit: the ms until it could pass
--   'again'   the call is to be repeated; nothing was granted
--   CORRUPT <key's number> <field> <why>

--- @include "read_log"

-- One permit of a log that has it, and in which nothing has run out or is dated
-- ahead: the common case, with the fewest commands. Arithmetic turns text into
-- numbers, without a call.
if #ARGV == 7 and ARGV[6] == '1' and ARGV[7] == '1' and ARGV[5] == '' and
    #limit_text <= 15 and string.find(limit_text, '^[1-9]%d*$') and rows < limit_text + 0 then
  local window, newest, used = ARGV[2] + 0, 0, 0
  if rows > 0 then
    newest = tonumber(redis.call('ZRANGE', KEYS[1], rows - 1, rows - 1, 'WITHSCORES')[2]) or math.huge
    used = redis.call('ZCOUNT', KEYS[1], '(' .. string.format('%.0f', now_text - window), '+inf')
  end
  if rows == used and newest <= now_text + 0 then
    redis.call('ZADD', KEYS[1], 'NX', now_text, ARGV[4] .. ':0')
    if redis.call('PTTL', KEYS[1]) ~= window then
      redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
    return {limit_text + 0, limit_text - used, 1, 0, window}
  end
end

local peeks = false
--- @include "decide_log"
