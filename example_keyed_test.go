package rratelimiter_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// Each key has a RateLimiter of its own, which Java services know by its name:
// "orders:ann".
func ExampleClient_Keyed() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()

	perUser := client.Keyed("orders:", rratelimiter.PerMinute(2))
	for _, user := range []string{"ann", "ann", "ann", "bob"} {
		d, err := perUser.Take(ctx, user, 1)
		fmt.Println(user, d.Granted, d.Remaining, d.RetryAfter, err)
	}
	fmt.Println(client.RateLimiter("orders:ann").AvailablePermits(ctx))
	// Output:
	// ann true 1 0s <nil>
	// ann true 0 0s <nil>
	// ann false 0 1m0s <nil>
	// bob true 1 0s <nil>
	// 0 <nil>
}

// The same in front of a handler.
func ExampleClient_Keyed_handler() {
	client, _, stop := connect()
	defer stop()

	perUser := client.Keyed("orders:", rratelimiter.PerMinute(100))
	limited := httplimit.New(perUser, httplimit.WithKey(httplimit.Header("X-User")))
	handler := limited(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "welcome")
	}))

	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.Header.Set("X-User", "ann")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("RateLimit"), w.Header().Get("RateLimit-Policy"))
	fmt.Print(w.Body)
	// Output:
	// 200 "default";r=99;t=60 "default";q=100;w=60
	// welcome
}

// The other limiters keep the keys of scripts that many services run.
func Example_otherLimiters() {
	server := startRedis()
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()
	ctx := context.Background()

	window := fixedwindow.New(rdb, fixedwindow.Config{Limit: 100, Window: time.Minute})
	log := slidinglog.New(rdb, slidinglog.Config{Limit: 3, Window: time.Minute, Thresholds: "rate:limit:config"})
	bucket := tokenbucket.New(rdb, tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Second})

	for key, limiter := range map[string]limit.Limiter{"api:limit:ann": window, "limit:ann:/orders": log, "{tokens:ann}": bucket} {
		if d, err := limiter.Take(ctx, key, 2); err != nil || !d.Granted || d.Remaining != d.Limit-2 {
			fmt.Println(key, d, err)
		}
	}
	fmt.Println(server.Keys())

	if err := log.SetThreshold(ctx, "limit:ann:/orders", 5); err != nil {
		fmt.Println(err)
	}
	fmt.Println(log.Take(ctx, "limit:ann:/orders", 3))
	// Output:
	// [api:limit:ann limit:ann:/orders {tokens:ann} {tokens:ann}_time]
	// {true 5 0 0s 1m0s} <nil>
}
