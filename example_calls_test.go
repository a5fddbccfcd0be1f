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
	client, server, stop := connect(rratelimiter.WithFailure(limit.FailLocal(0.25)))
	defer stop()
	orders := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(20)))

	server.SetError("CLUSTERDOWN The cluster is down")
	d, err := orders.Take(ctx, 2)
	fmt.Println(d.Granted, d.Limit, d.Remaining, err)
	// Output: true 5 3 <nil>
}

func ExampleRateLimiter_TryAcquire() {
	client, _, stop := connect()
	defer stop()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(2)))
	for _, atMost := range []time.Duration{time.Minute, time.Minute, 10 * time.Millisecond} {
		fmt.Println(limiter.TryAcquire(ctx, 1, atMost)) // it waits so long if it must
	}
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
}

// Much code takes anything that has Wait, such as golang.org/x/time/rate's limiters.
func ExampleRateLimiter_Wait() {
	client, _, stop := connect()
	defer stop()
	var limiter interface{ Wait(context.Context) error } = client.RateLimiter("partner", rratelimiter.WithDefault(rratelimiter.PerMinute(5)))
	fmt.Println(limiter.Wait(ctx))
	// Output: <nil>
}

// A day's tokens that a program reserved before it died come back after a minute, not after a day.
func ExampleHold() {
	client, server, stop := connect()
	defer stop()
	limiter := client.RateLimiter("tokens", rratelimiter.WithDefault(rratelimiter.PerDay(1000)))
	r, err := limiter.Reserve(ctx, 600, 0, rratelimiter.Hold(time.Minute))
	fmt.Println(r.Remaining, err)
	server.SetTime(noon.Add(time.Minute))
	fmt.Println(limiter.AvailablePermits(ctx))
	// Output:
	// 400 <nil>
	// 1000 <nil>
}

// A worker takes as much of its backlog as the limit has room for.
func ExampleRateLimiter_TakeUpTo() {
	client, _, stop := connect()
	defer stop()
	limiter := client.RateLimiter("mails", rratelimiter.WithDefault(rratelimiter.PerMinute(100)))
	for _, backlog := range []int64{250, 150} {
		taken, d, err := limiter.TakeUpTo(ctx, backlog)
		fmt.Println(taken, d.Granted, d.RetryAfter, err)
	}
	// Output:
	// 100 true 0s <nil>
	// 0 false 1m0s <nil>
}
