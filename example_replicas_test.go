package rratelimiter_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// A grant that a failover could lose does not count. The Redis of this example has no
// replica.
func ExampleWithReplicas() {
	client, _, stop := connect(rratelimiter.WithReplicas(1, 100*time.Millisecond))
	defer stop()
	coupons := client.RateLimiter("coupons", rratelimiter.WithDefault(rratelimiter.PerDay(1000)))

	ok, err := coupons.TryAcquire(context.Background(), 1, 0)
	fmt.Println(ok, errors.Is(err, rratelimiter.ErrNotReplicated))
	// Output: false true
}
