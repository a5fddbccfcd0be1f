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

// Take returns the count, this request included, or -1 where that is above the
// limit.
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

// SlidingLog keeps a sorted set of the requests that passed, scored by epoch
// milliseconds.
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
