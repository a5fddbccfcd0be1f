package fixedwindow_test

import (
	"context"
	"fmt"
	"time"
	_ "time/tzdata" // a machine may have no time zones

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
)

// A plan of 10,000 requests a day, from midnight to midnight in Berlin.
func ExampleDaily() {
	rdb, stop := limittest.ConnectExample() // its clock stands at noon, UTC
	defer stop()

	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		fmt.Println(err)
		return
	}
	client := rratelimiter.New(rdb)
	limiter := fixedwindow.New(client, fixedwindow.Config{Limit: 10_000, Calendar: fixedwindow.Daily(berlin)})
	d, err := limiter.Take(context.Background(), "ann", 1)
	fmt.Println(d.Granted, d.Remaining, d.ResetAfter, err)
	// Output:
	// true 9999 11h0m0s <nil>
}

// A week's quota of each customer's plan. A customer who changes plans keeps what was used.
func ExampleNewFunc() {
	rdb, stop := limittest.ConnectExample() // its clock stands at noon, UTC, of a Saturday
	defer stop()
	ctx := context.Background()

	plans := map[string]int64{"ann": 1000} // of all others 10
	client := rratelimiter.New(rdb)
	quota := fixedwindow.NewFunc(client, func(customer string) fixedwindow.Config {
		return fixedwindow.Config{Limit: max(10, plans[customer]), Calendar: fixedwindow.Weekly(time.UTC, time.Monday)}
	})
	for _, customer := range []string{"ann", "bob"} {
		d, err := quota.Take(ctx, customer, 4)
		fmt.Println(d.Granted, d.Limit, d.Remaining, d.ResetAfter, err)
	}
	plans["bob"] = 100
	d, err := quota.Take(ctx, "bob", 4)
	fmt.Println(d.Granted, d.Limit, d.Remaining, d.ResetAfter, err)
	// Output:
	// true 1000 996 36h0m0s <nil>
	// true 10 6 36h0m0s <nil>
	// true 100 92 36h0m0s <nil>
}

// A model may use 1000 tokens a day. A request reserves what it may cost, and is charged what it has cost.
func ExampleLimiter_TakeReserved() {
	rdb, stop := limittest.ConnectExample()
	defer stop()
	ctx := context.Background()

	client := rratelimiter.New(rdb)
	limiter := fixedwindow.New(client, fixedwindow.Config{Limit: 1000, Calendar: fixedwindow.Daily(time.UTC)})
	d, settle, err := limiter.TakeReserved(ctx, "ann", 600)
	fmt.Println(d.Granted, d.Remaining, err)
	if err := settle(ctx, 150); err != nil {
		fmt.Println(err)
	}
	d, err = limiter.Peek(ctx, "ann", 0)
	fmt.Println(d.Remaining, err)
	// Output:
	// true 400 <nil>
	// 850 <nil>
}
