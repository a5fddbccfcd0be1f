--- @include "digits" "member"

-- The config's field "answered" lists the calls that a repeat decided, so that a copy that comes late changes
-- nothing: "ms:identity;" each, the newest first, the identity in hex. It holds the 31 newest of layout D2, for a minute.

-- Returns when a call was put on the list, in epoch ms; nil or false if it is not there.
local function was_answered(list, identity)
  local at = list and string.find(list, ':' .. hex(identity) .. ';', 1, true)
  return at and tonumber(string.match(string.sub(list, math.max(1, at - 16), at - 1), '%d+$'))
end

-- Puts a call on the list.
local function mark_answered(key, list, identity, now)
  list = digits(now) .. ':' .. hex(identity) .. ';' .. (list or '')
  redis.call('HSET', key, 'answered', string.match(string.sub(list, 1, 31 * 49), '^.*;'))
end

-- Puts a call on the list if it is to be noted; otherwise removes a list that is no longer needed.
local function keep_answered(key, list, identity, now, noted)
  if noted then
    mark_answered(key, list, identity, now)
  elseif list and now - tonumber(string.match(list, '^%d+') or 0) > 60000 then
    redis.call('HDEL', key, 'answered')
  end
end
