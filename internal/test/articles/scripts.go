package articles

import (
	"context"
	"crypto/rand"

	"github.com/redis/go-redis/v9"
)

var fixedWindow = redis.NewScript(`
-- KEYS: the count. ARGV: limit, seconds. Returns 1 or 0.
local count = redis.call('GET', KEYS[1])
if not count then
  redis.call('SET', KEYS[1], 1, 'EX', ARGV[2])
  return 1
end
if tonumber(count) < tonumber(ARGV[1]) then
  redis.call('INCR', KEYS[1])
  return 1
end
return 0
`)

// Eval is Take as one script.
func (l FixedWindow) Eval(ctx context.Context) (int64, error) {
	return fixedWindow.Run(ctx, l.Redis, []string{l.Key}, l.Limit, l.Seconds).Int64()
}

var counter = redis.NewScript(`
-- KEYS: the count. ARGV: limit, seconds. Returns the count or -1.
local count = redis.call('INCR', KEYS[1])
if count == 1 then
  redis.call('EXPIRE', KEYS[1], ARGV[2])
end
if count > tonumber(ARGV[1]) then
  return -1
end
return count
`)

// Eval is Take as one script.
func (l Counter) Eval(ctx context.Context) (int64, error) {
	return counter.Run(ctx, l.Redis, []string{l.Key}, l.Limit, l.Seconds).Int64()
}

var slidingLog = redis.NewScript(`
-- KEYS: the log, and the hash of thresholds if there is one. ARGV: epoch ms,
-- seconds, threshold, the request's id. Returns 1 or 0.
local threshold = KEYS[2] and redis.call('HGET', KEYS[2], KEYS[1]) or ARGV[3]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', ARGV[1] - 1000 * ARGV[2]))
if redis.call('ZCARD', KEYS[1]) >= tonumber(threshold) then
  return 0
end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[4])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
`)

// Eval is Take as one script. With Thresholds, both keys must be in one slot of a
// cluster.
func (l SlidingLog) Eval(ctx context.Context) (int64, error) {
	keys := []string{l.Key}
	if l.Thresholds != "" {
		keys = append(keys, l.Thresholds)
	}
	return slidingLog.Run(ctx, l.Redis, keys, l.Now().UnixMilli(), l.Seconds, l.Threshold, rand.Text()).Int64()
}

var tokenBucket = redis.NewScript(`
-- KEYS: the tokens, the time. ARGV: capacity, refill, the interval in seconds,
-- cost, epoch seconds, the seconds to fill the bucket. Returns the tokens or -1.
local capacity, refill, interval = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local cost, now = tonumber(ARGV[4]), tonumber(ARGV[5])
local tokens, last = redis.call('GET', KEYS[1]), now
if tokens then
  last = tonumber(redis.call('GET', KEYS[2]))
  local intervals = math.floor((now - last) / interval)
  tokens = math.min(capacity, tonumber(tokens) + intervals * refill)
  last = last + intervals * interval
else
  tokens = capacity
end
if tokens < cost then
  return -1
end
tokens = tokens - cost
redis.call('SET', KEYS[1], tokens, 'EX', ARGV[6])
redis.call('SET', KEYS[2], last, 'EX', ARGV[6])
return tokens
`)

// Eval is Take as one script. Both keys must be in one slot of a cluster.
func (l TokenBucket) Eval(ctx context.Context) (int64, error) {
	return tokenBucket.Run(ctx, l.Redis, []string{l.Key, l.TimeKey()},
		l.Capacity, l.Refill, l.Seconds, l.Cost, l.Now().Unix(), l.fillSeconds()).Int64()
}
