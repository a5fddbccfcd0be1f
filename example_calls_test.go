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
