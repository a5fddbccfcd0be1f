package rratelimiter_test

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// Most callers are served without a round trip: each request to Redis takes
// permits for those to come.
func ExampleWithLease() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()

	limiter := client.RateLimiter("events",
		rratelimiter.WithDefault(rratelimiter.PerSecond(1_000_000)),
		rratelimiter.WithLease(rratelimiter.Lease{Permits: 50_000, Life: 20 * time.Millisecond}))
	granted := 0
	for range 10_000 {
		ok, err := limiter.TryAcquire(ctx, 1, 0)
		if err != nil {
			fmt.Println(err)
		}
		if ok {
			granted++
		}
	}
	fmt.Println(granted)
	// Output: 10000
}

// Who is refused once is refused without a round trip until permits can be there.
func ExampleWithRefusalCache() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()

	limiter := client.RateLimiter("logins", rratelimiter.WithDefault(rratelimiter.PerHour(2)),
		rratelimiter.WithRefusalCache())
	for range 4 {
		fmt.Println(limiter.TryAcquire(ctx, 1, 0))
	}
	_ = limiter.Release(ctx, 1)
	fmt.Println(limiter.TryAcquire(ctx, 1, 0))
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
	// false <nil>
	// true <nil>
}

// With notices, other programs' releases end a refusal too.
func ExampleWithNotices() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()

	limiter := client.RateLimiter("logins", rratelimiter.WithDefault(rratelimiter.PerHour(1)),
		rratelimiter.WithRefusalCache(rratelimiter.WithNotices()))
	fmt.Println(limiter.TryAcquire(ctx, 1, 0))
	fmt.Println(limiter.TryAcquire(ctx, 1, 0))
	// Output:
	// true <nil>
	// false <nil>
}
