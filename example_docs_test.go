package rratelimiter_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// These settings suit most services: docs/production.md has their reasons.
func Example_production() {
	server := startRedis()
	defer server.Close()
	ctx, addr := context.Background(), server.Addr()

	rdb := redis.NewClient(&redis.Options{
		Addr:                  addr,
		ContextTimeoutEnabled: true,
		DialTimeout:           time.Second,
		DialerRetries:         1,
		ReadTimeout:           time.Second,
		PoolSize:              64,
	})
	client := rratelimiter.New(rdb,
		rratelimiter.WithCallTimeout(time.Second),
		rratelimiter.WithFailure(limit.FailLocal(0.25)), // four instances of this service
		rratelimiter.WithLogger(slog.Default()),
	)
	orders := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerSecond(100)))
	fmt.Println(orders.TryAcquire(ctx, 1, 0))

	if err := client.Close(ctx); err != nil {
		slog.Error("closing the limiters", "error", err)
	}
	if err := rdb.Close(); err != nil {
		slog.Error("closing Redis", "error", err)
	}
	// Output: true <nil>
}

// A Java service has the limiter "orders", and a NameMapper.
func Example_java() {
	server := startRedis()
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()
	ctx := context.Background()

	client := rratelimiter.New(rdb,
		rratelimiter.WithNameMapper(func(name string) string { return "shop:" + name }),
		rratelimiter.WithRedissonVersion("3.20.1"), // the oldest in use; leave it out from 3.35.0 on
	)
	defer func() { _ = client.Close(ctx) }()

	orders := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerSecond(100)))
	granted, err := orders.TryAcquire(ctx, 1, 0)
	fmt.Println(granted, err, server.Keys())
	// Output: true <nil> [shop:orders {shop:orders}:permits {shop:orders}:value]
}

// What docs/coming-from.md shows.
func Example_comingFrom() {
	server := startRedis()
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()
	ctx := context.Background()
	mux := http.NewServeMux()

	client := rratelimiter.New(rdb)
	perUser := client.Keyed("users:", rratelimiter.PerMinute(10)) // a limiter for each key
	orders := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerSecond(100)))
	defer func() { _ = client.Close(ctx) }()

	visit := func() error {
		decision, err := perUser.Take(ctx, "ann", 1)
		if err != nil {
			return err // Redis did not decide
		}
		if !decision.Granted {
			return fmt.Errorf("try again in %v", decision.RetryAfter)
		}
		return nil
	}
	order := func() error {
		if err := orders.Acquire(ctx, 1); err != nil {
			return err
		}
		return nil
	}
	pay := func() {
		bucket := tokenbucket.New(rdb, tokenbucket.Config{Capacity: 5, Refill: 1, Interval: 6 * time.Second})
		decision, err := bucket.Take(ctx, "{users:ann}", 1)
		fmt.Println(decision.Remaining, err)
	}
	for range 10 {
		_ = visit()
	}
	fmt.Println(visit(), order())
	pay()
	granted, decision, err := orders.TakeUpTo(ctx, 500)
	fmt.Println(granted, decision.Remaining, err)

	perClient := httplimit.New(client.Keyed("", rratelimiter.PerMinute(10)), httplimit.WithPrefix("users:"), httplimit.WithLegacyHeaders())
	handler := perClient(mux)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	fmt.Println(w.Header().Get("X-RateLimit-Remaining"), server.Exists("users:192.0.2.1"))
	// Output:
	// try again in 1m0s <nil>
	// 4 <nil>
	// 99 0 <nil>
	// 9 true
}
