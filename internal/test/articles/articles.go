// Package articles holds the limiting rules that are copied from article to article and run in many services, with their
// faults: for tests, measurements and demonstrations beside the limiters of this module, which share their keys.
package articles

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// FixedWindow counts the requests of a window that starts with its first one.
// The key holds the count, and its time to live is the window's.
type FixedWindow struct {
	Redis   redis.Cmdable
	Key     string
	Limit   int64
	Seconds int64 // the window
}

// Counter counts all requests of a window, the refused ones too. It has the keys of FixedWindow.
type Counter FixedWindow

// SlidingLog keeps a sorted set of the requests that passed, scored by epoch milliseconds.
type SlidingLog struct {
	Redis     redis.Cmdable
	Key       string
	Threshold int64 // if Thresholds has none for the key
	Seconds   int64 // the window

	// Thresholds is the key of a hash: field = limiter key, value = threshold. Empty: Threshold holds.
	Thresholds string

	Now func() time.Time // the caller's clock
}

// TokenBucket starts full and gets Refill tokens each interval. The key holds
// the tokens, and that of [TokenBucket.TimeKey] when they were last refilled.
type TokenBucket struct {
	Redis    redis.Cmdable
	Key      string
	Capacity int64
	Refill   int64
	Seconds  int64 // the interval
	Cost     int64 // tokens a request takes

	Now func() time.Time // the caller's clock
}

// TimeKey returns the key of the last refill's epoch seconds.
func (l TokenBucket) TimeKey() string { return l.Key + "_time" }

// fillSeconds is too short if Capacity is no multiple of Refill.
func (l TokenBucket) fillSeconds() int64 { return l.Capacity * l.Seconds / l.Refill }

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

// Eval returns 1 if the request may pass, else 0.
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

// Eval returns the count, this request included, or -1 if that is above the limit.
func (l Counter) Eval(ctx context.Context) (int64, error) {
	return counter.Run(ctx, l.Redis, []string{l.Key}, l.Limit, l.Seconds).Int64()
}

var slidingLog = redis.NewScript(`
-- KEYS: the log. ARGV: epoch ms, seconds, threshold, the request's id. Returns 1 or 0.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', ARGV[1] - 1000 * ARGV[2]))
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then
  return 0
end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[4])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
`)

// Eval returns 1 if the request may pass, else 0. It reads the threshold before the
// script, since the two keys need not be in one slot of a cluster.
func (l SlidingLog) Eval(ctx context.Context) (int64, error) {
	threshold := l.Threshold
	if l.Thresholds != "" {
		set, err := l.Redis.HGet(ctx, l.Thresholds, l.Key).Int64()
		switch {
		case err == nil:
			threshold = set
		case !errors.Is(err, redis.Nil):
			return 0, err
		}
	}
	return slidingLog.Run(ctx, l.Redis, []string{l.Key}, l.Now().UnixMilli(), l.Seconds, threshold, rand.Text()).Int64()
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

// Eval returns the tokens left, or -1 if there are too few. Both keys must be in one slot of a cluster.
func (l TokenBucket) Eval(ctx context.Context) (int64, error) {
	return tokenBucket.Run(ctx, l.Redis, []string{l.Key, l.TimeKey()},
		l.Capacity, l.Refill, l.Seconds, l.Cost, l.Now().Unix(), l.fillSeconds()).Int64()
}
