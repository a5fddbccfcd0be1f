package rratelimiter_test

import (
	"context"
	"fmt"

	"github.com/rratelimiter/rratelimiter"
)

// The rate in the code wins: whoever deploys a new one need not change it in Redis.
func ExampleWithRate() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()

	before := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(100)))
	fmt.Println(before.TryAcquire(ctx, 30, 0))

	orders := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(50)))
	d, err := orders.Take(ctx, 1)
	fmt.Println(d.Granted, d.Limit, d.Remaining, err) // the 30 are still in use
	// Output:
	// true <nil>
	// true 50 19 <nil>
}
