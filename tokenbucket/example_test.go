package tokenbucket_test

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// Peek says what Take would answer, TakeUpTo takes what there is, and Reset starts a key
// again.
func ExampleLimiter() {
	rdb, stop := limittest.ConnectExample()
	defer stop()
	ctx := context.Background()

	client := rratelimiter.New(rdb)
	limiter := tokenbucket.New(client, tokenbucket.Config{Capacity: 3, Refill: 1, Interval: time.Minute})
	d, err := limiter.Peek(ctx, "ann", 2)
	fmt.Println(d.Granted, d.Remaining, err)
	taken, d, err := limiter.TakeUpTo(ctx, "ann", 10)
	fmt.Println(taken, d.Granted, d.Remaining, err)
	d, err = limiter.Take(ctx, "ann", 1)
	fmt.Println(d.Granted, d.RetryAfter, err)
	fmt.Println(limiter.Reset(ctx, "ann"))
	d, err = limiter.Take(ctx, "ann", 1)
	fmt.Println(d.Granted, d.Remaining, err)
	// Output:
	// true 1 <nil>
	// 3 true 0 <nil>
	// false 1m0s <nil>
	// <nil>
	// true 2 <nil>
}
