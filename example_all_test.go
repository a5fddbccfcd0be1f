package rratelimiter_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// A shop takes 3 orders a second and 5 an hour from each user, and 100 a second
// from all: an order passes all three limits or uses none of them up.
func ExampleClient_TryAcquireAll() {
	client, server, stop := connect()
	defer stop()
	ctx := context.Background()
	order := func(user string) {
		ok, err := client.TryAcquireAll(ctx, 1, 0,
			client.RateLimiter("{shop}:all", rratelimiter.WithDefault(rratelimiter.PerSecond(100))),
			client.RateLimiter("{shop}:second:"+user, rratelimiter.WithDefault(rratelimiter.PerSecond(3))),
			client.RateLimiter("{shop}:hour:"+user, rratelimiter.WithDefault(rratelimiter.PerHour(5))),
		)
		fmt.Println(user, ok, err)
	}

	for range 4 {
		order("ann")
	}
	order("bob")
	server.SetTime(noon.Add(time.Second))
	for range 3 {
		order("ann")
	}
	free, _ := client.RateLimiter("{shop}:second:ann").AvailablePermits(ctx)
	fmt.Println("the refused order left", free, "of the second")
	// Output:
	// ann true <nil>
	// ann true <nil>
	// ann true <nil>
	// ann false <nil>
	// bob true <nil>
	// ann true <nil>
	// ann true <nil>
	// ann false <nil>
	// the refused order left 1 of the second
}

// On a cluster only names with the same hash tag are kept on one server.
func ExampleClient_TryAcquireAll_names() {
	client, _, stop := connect()
	defer stop()

	_, err := client.TryAcquireAll(context.Background(), 1, 0, client.RateLimiter("second"), client.RateLimiter("hour"))
	fmt.Println(errors.Is(err, rratelimiter.ErrUnsupported))
	// Output: true
}
