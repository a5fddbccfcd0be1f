-- Reads a sliding log, as the text of a script's head: into limit_text, now_text and
-- rows, how many it has.
local limit_text = ARGV[1]
if KEYS[2] then
  limit_text = redis.call('HGET', KEYS[2], ARGV[3]) or limit_text
end
local time = redis.call('TIME')
local now_text = time[1] .. string.sub('00000' .. time[2], -6, -4)
local rows = redis.call('ZCARD', KEYS[1])
