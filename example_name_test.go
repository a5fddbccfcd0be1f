package rratelimiter_test

import (
	"context"
	"fmt"

	"github.com/rratelimiter/rratelimiter"
)

func ExampleWithClientName() {
	client, server, stop := connect(rratelimiter.WithClientName("orders-7f9c"), rratelimiter.WithClientID("its-id"))
	defer stop()
	ctx := context.Background()

	orders := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerSecond(100)))
	fmt.Println(orders.TryAcquire(ctx, 1, 0))
	_ = client.Close(ctx) // waits for what is under way: else the name may be noted a moment later
	noted, err := server.ZMembers("rratelimiter:clients")
	fmt.Println(len(noted), err)
	// Output:
	// true <nil>
	// 1 <nil>
}
