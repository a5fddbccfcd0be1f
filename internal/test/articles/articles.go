// Package articles holds the limiting rules that are copied from article to
// article and run in many services, with their faults: for tests, measurements
// and demonstrations beside the limiters of this module, which share their keys.
//
// Each rule comes in two forms that answer and store the same: Take makes it of
// plain Redis calls one after another, which is not atomic, and Eval runs it as
// one script, as services do.
package articles

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
	"strconv"
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

// Take returns 1 where the request may pass, else 0.
func (l FixedWindow) Take(ctx context.Context) (int64, error) {
	count, err := l.Redis.Get(ctx, l.Key).Int64()
	switch {
	case errors.Is(err, redis.Nil):
		return 1, l.Redis.SetEx(ctx, l.Key, 1, seconds(l.Seconds)).Err()
	case err != nil:
		return 0, err
	case count < l.Limit:
		return 1, l.Redis.Incr(ctx, l.Key).Err()
	}
	return 0, nil
}

// Counter counts all requests of a window, the refused ones too. It has the
// keys of FixedWindow.
type Counter struct {
	Redis   redis.Cmdable
	Key     string
	Limit   int64
	Seconds int64 // the window
}

// Take returns the count, this request included, or -1 where that is above the limit.
func (l Counter) Take(ctx context.Context) (int64, error) {
	count, err := l.Redis.Incr(ctx, l.Key).Result()
	if err != nil {
		return 0, err
	}
	if count == 1 {
		err = l.Redis.Expire(ctx, l.Key, seconds(l.Seconds)).Err()
	}
	if count > l.Limit {
		return -1, err
	}
	return count, err
}

// SlidingLog keeps a sorted set of the requests that passed, scored by epoch milliseconds.
type SlidingLog struct {
	Redis     redis.Cmdable
	Key       string
	Threshold int64 // where Thresholds has none for the key
	Seconds   int64 // the window

	// Thresholds is the key of a hash: field = limiter key, value = threshold.
	// Empty: Threshold holds.
	Thresholds string

	Now func() time.Time // the caller's clock
}

// Take returns 1 where the request may pass, else 0.
func (l SlidingLog) Take(ctx context.Context) (int64, error) {
	now := l.Now().UnixMilli()
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
	over := strconv.FormatInt(now-1000*l.Seconds, 10)
	if err := l.Redis.ZRemRangeByScore(ctx, l.Key, "-inf", over).Err(); err != nil {
		return 0, err
	}
	count, err := l.Redis.ZCard(ctx, l.Key).Result()
	if err != nil || count >= threshold {
		return 0, err
	}
	if err := l.Redis.ZAdd(ctx, l.Key, redis.Z{Score: float64(now), Member: rand.Text()}).Err(); err != nil {
		return 0, err
	}
	return 1, l.Redis.Expire(ctx, l.Key, seconds(l.Seconds)).Err()
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

// Take returns the tokens left, or -1 where there are too few.
func (l TokenBucket) Take(ctx context.Context) (int64, error) {
	now := l.Now().Unix()
	tokens, last := l.Capacity, now
	stored, err := l.Redis.Get(ctx, l.Key).Int64()
	switch {
	case err == nil:
		if last, err = l.Redis.Get(ctx, l.TimeKey()).Int64(); err != nil {
			return 0, err
		}
		intervals := int64(math.Floor(float64(now-last) / float64(l.Seconds)))
		tokens = min(l.Capacity, stored+intervals*l.Refill)
		last += intervals * l.Seconds
	case !errors.Is(err, redis.Nil):
		return 0, err
	}
	if tokens < l.Cost {
		return -1, nil
	}
	tokens -= l.Cost
	fill := seconds(l.fillSeconds())
	if err := l.Redis.SetEx(ctx, l.Key, tokens, fill).Err(); err != nil {
		return 0, err
	}
	return tokens, l.Redis.SetEx(ctx, l.TimeKey(), last, fill).Err()
}

// fillSeconds is too short where Capacity is no multiple of Refill.
func (l TokenBucket) fillSeconds() int64 { return l.Capacity * l.Seconds / l.Refill }

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

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

// Eval is Take as one script. With Thresholds, both keys must be in one slot of a cluster.
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
