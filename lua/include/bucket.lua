--- @include "digits"

-- The longest time in ms that counts, 292 years: clients and miniredis count nanoseconds.
local longest = 9223372036854

-- Returns the ms that a bucket may live for: by then one with so many tokens has filled, and an empty one, after fill.
local function life_of(tokens, capacity, refill, interval, fill)
  return math.min(longest, math.max(tonumber(fill), math.ceil((capacity - tokens) / refill) * interval * 1000))
end

-- Returns the tokens and the second of the last refill once what has come since is in the bucket.
local function refilled(tokens, last, second, capacity, refill, interval)
  local periods = math.max(0, math.floor((second - last) / interval))
  return math.min(capacity, tokens + periods * refill), last + periods * interval
end

-- Returns the second of the last refill, now if the clock has gone back since: then the second lies ahead, and the end
-- of the keys has moved away as far. What a caller's clock that is ahead wrote stays: it would refill again after us.
local function since(last, second, life)
  if last > second and redis.call('PTTL', KEYS[2]) > life then
    return second
  end
  return last
end

-- Writes a bucket. Both keys expire together, and not before it is full: without them it is.
local function store(tokens, last, life)
  redis.call('SET', KEYS[1], digits(tokens), 'PX', digits(life))
  redis.call('SET', KEYS[2], digits(last), 'PX', digits(life))
end
