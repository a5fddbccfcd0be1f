package rratelimiter_test

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Four programs share the limiter: while Redis is away, each has a quarter of the rate.
func ExampleWithFailure() {
	client, server, stop := connect(
		rratelimiter.WithFailure(limit.FailLocal(0.25)), rratelimiter.WithCallTimeout(100*time.Millisecond))
	defer stop()
	ctx := context.Background()
	orders := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(20)))

	server.Close()
	granted := 0
	for range 20 {
		ok, err := orders.TryAcquire(ctx, 1, 0)
		if err != nil {
			fmt.Println(err)
		}
		if ok {
			granted++
		}
	}
	fmt.Println(granted)
	// Output: 5
}
