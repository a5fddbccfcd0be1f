package rratelimiter_test

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

func ExamplePerDay() {
	cfg := rratelimiter.PerDay(5000)
	fmt.Println(cfg.Rate, cfg.Interval)
	// Output: 5000 24h0m0s
}

// A KeyedLimiter has the calls that handlers need; Limiter leads to all others.
func ExampleKeyedLimiter() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()

	perUser := client.Keyed("orders:", rratelimiter.PerMinute(2))
	fmt.Println(perUser.TryAcquire(ctx, "ann", 2, 0))
	fmt.Println(perUser.Release(ctx, "ann", 1))
	fmt.Println(perUser.TryAcquire(ctx, "ann", 2, 0))

	vip := rratelimiter.PerMinute(100)
	vip.KeepAlive = time.Hour
	if err := perUser.Limiter("bob").SetRate(ctx, vip); err != nil {
		fmt.Println(err)
	}
	fmt.Println(perUser.Limiter("bob").AvailablePermits(ctx))
	// Output:
	// true <nil>
	// <nil>
	// false <nil>
	// 100 <nil>
}

// Peek tells what Take would answer, as often as one likes.
func ExampleRateLimiter_Peek() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()

	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(3)))
	for range 2 {
		d, err := limiter.Peek(ctx, 2)
		fmt.Println(d.Granted, d.Remaining, err)
	}
	if err := limiter.Acquire(ctx, 2); err != nil {
		fmt.Println(err)
	}
	d, err := limiter.Peek(ctx, 2)
	fmt.Println(d.Granted, d.Remaining, d.RetryAfter, err)
	// Output:
	// true 1 <nil>
	// true 1 <nil>
	// false 1 1m0s <nil>
}

// A worker takes as much of its backlog as the limit has room for.
func ExampleRateLimiter_TakeUpTo() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()

	limiter := client.RateLimiter("mails", rratelimiter.WithDefault(rratelimiter.PerMinute(100)))
	for backlog := int64(250); backlog > 0; {
		taken, d, err := limiter.TakeUpTo(ctx, backlog)
		fmt.Println(taken, d.Granted, d.RetryAfter, err)
		if !d.Granted {
			break
		}
		backlog -= taken
	}
	// Output:
	// 100 true 0s <nil>
	// 0 false 1m0s <nil>
}

// After a mistake, a user's limit starts full again.
func ExampleRateLimiter_Reset() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()

	limiter := client.RateLimiter("logins:ann", rratelimiter.WithDefault(rratelimiter.PerDay(3)))
	fmt.Println(limiter.TryAcquire(ctx, 3, 0))
	fmt.Println(limiter.TryAcquire(ctx, 1, 0))
	fmt.Println(limiter.Reset(ctx))
	fmt.Println(limiter.AvailablePermits(ctx))
	// Output:
	// true <nil>
	// false <nil>
	// <nil>
	// 3 <nil>
}
