package rratelimiter_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// ctx is the context of all examples.
var ctx = context.Background()

// noon is the time on the clock of an example's Redis.
var noon = time.Date(2026, time.November, 21, 12, 0, 0, 0, time.UTC)

// startRedis starts a Redis inside this process. Its clock stands at noon, so
// that the examples print the same figures each time; SetTime moves it.
func startRedis() *miniredis.Miniredis {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	server.ClockTTL(true)
	server.SetTime(noon)
	return server
}

// openRedis returns a client of a new Redis, and what stops both.
func openRedis() (*redis.Client, *miniredis.Miniredis, func()) {
	server := startRedis()
	// A machine that stalls is no outage.
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ReadTimeout: time.Minute})
	return rdb, server, func() {
		_ = rdb.Close()
		server.Close()
	}
}

// connect is openRedis with a Client.
func connect(opts ...rratelimiter.Option) (*rratelimiter.Client, *miniredis.Miniredis, func()) {
	rdb, server, stop := openRedis()
	client := rratelimiter.New(rdb, opts...)
	return client, server, func() {
		_ = client.Close(ctx)
		stop()
	}
}

func Example() {
	server := startRedis()
	defer server.Close()
	addr := server.Addr()

	rdb := redis.NewClient(&redis.Options{Addr: addr})
	client := rratelimiter.New(rdb)
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerSecond(100)))
	ok, err := limiter.TryAcquire(ctx, 1, 200*time.Millisecond)
	fmt.Println(ok, err)

	_ = client.Close(ctx)
	_ = rdb.Close()
	// Output: true <nil>
}

// A refusal is no error. Distinguish errors with errors.Is.
func Example_errors() {
	client, _, stop := connect()
	defer stop()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))

	for _, permits := range []int64{10, 1, 11, 0} {
		ok, err := limiter.TryAcquire(ctx, permits, 0)
		switch {
		case err == nil && ok:
			fmt.Println(permits, "granted")
		case err == nil:
			fmt.Println(permits, "refused: try again later")
		case errors.Is(err, rratelimiter.ErrPermitsExceedRate):
			fmt.Println(permits, "can never be granted")
		default:
			fmt.Println(err)
		}
	}
	// Output:
	// 10 granted
	// 1 refused: try again later
	// 11 can never be granted
	// rratelimiter: TryAcquire "orders": invalid number of permits: 0 is not between 1 and 4294967295
}

// Two programs, each with a Client of its own, share the permits of a limiter.
func ExampleNew() {
	server := startRedis()
	defer server.Close()

	for _, program := range []string{"shop", "mobile"} {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		client := rratelimiter.New(rdb)
		limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
		if err := limiter.Acquire(ctx, 3); err != nil {
			fmt.Println(err)
		}
		free, err := limiter.AvailablePermits(ctx)
		fmt.Println(program, free, err)
		_ = client.Close(ctx)
		_ = rdb.Close()
	}
	// Output:
	// shop 7 <nil>
	// mobile 4 <nil>
}

// Close answers those who wait before the program ends.
func ExampleClient_Close() {
	client, _, stop := connect()
	defer stop()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(1)))
	fmt.Println(limiter.Acquire(ctx, 1))

	waiting := make(chan error)
	go func() { waiting <- limiter.Acquire(ctx, 1) }()
	timeout, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	fmt.Println(client.Close(timeout))
	fmt.Println(errors.Is(<-waiting, rratelimiter.ErrClosed))
	// Output:
	// <nil>
	// <nil>
	// true
}

// The first request sets the limiter up, in the same round trip. A rate that
// the limiter has already stays.
func ExampleWithDefault() {
	client, _, stop := connect()
	defer stop()

	for _, rate := range []int64{10, 20} {
		limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(rate)))
		decision, err := limiter.Take(ctx, 1)
		fmt.Println(decision.Limit, decision.Remaining, err)
	}
	// Output:
	// 10 9 <nil>
	// 10 8 <nil>
}

// With an id of its own a program finds its permits of PerClient limiters
// again after a restart.
func ExampleWithClientID() {
	rdb, _, stop := openRedis()
	defer stop()

	cfg := rratelimiter.Config{Type: rratelimiter.PerClient, Rate: 5, Interval: time.Minute}
	for _, id := range []string{"worker-1", "worker-2", "worker-1"} {
		client := rratelimiter.New(rdb, rratelimiter.WithClientID(id))
		limiter := client.RateLimiter("mail", rratelimiter.WithDefault(cfg))
		decision, err := limiter.Take(ctx, 2)
		fmt.Println(id, decision.Remaining, err)
		_ = client.Close(ctx)
	}
	// Output:
	// worker-1 3 <nil>
	// worker-2 3 <nil>
	// worker-1 1 <nil>
}

// The last service with an old Redisson has been upgraded.
func ExampleRateLimiter_Migrate() {
	old, server, stop := connect(rratelimiter.WithRedissonVersion("3.15.5"))
	defer stop()
	limiter := old.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
	for range 3 {
		_, _ = limiter.TryAcquire(ctx, 2, 0)
	}

	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()
	client := rratelimiter.New(rdb)
	orders := client.RateLimiter("orders")
	members, err := orders.Migrate(ctx)
	fmt.Println(members, "members rewritten", err)
	free, err := orders.AvailablePermits(ctx)
	fmt.Println(free, "free", err)
	_ = client.Close(ctx)
	// Output:
	// 3 members rewritten <nil>
	// 4 free <nil>
}

// A KeyedLimiter has the calls that handlers need; Limiter leads to all others.
func ExampleKeyedLimiter() {
	client, _, stop := connect()
	defer stop()

	perUser := client.Keyed("orders:", rratelimiter.PerMinute(2))
	fmt.Println(perUser.TryAcquire(ctx, "ann", 2, 0))
	fmt.Println(perUser.Release(ctx, "ann", 1))
	fmt.Println(perUser.TryAcquire(ctx, "ann", 2, 0))

	vip := rratelimiter.PerMinute(100)
	vip.KeepAlive = time.Hour
	if err := perUser.Limiter("bob").SetRate(ctx, vip); err != nil {
		fmt.Println(err)
	}
	fmt.Println(perUser.Limiter("bob").AvailablePermits(ctx))
	// Output:
	// true <nil>
	// <nil>
	// false <nil>
	// 100 <nil>
}

// Each key has a RateLimiter of its own, which Java services know by its name:
// "orders:ann".
func ExampleClient_Keyed() {
	client, _, stop := connect()
	defer stop()

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

// The other limiters keep the keys of scripts that many services run.
func Example_otherLimiters() {
	rdb, server, stop := openRedis()
	defer stop()

	client := rratelimiter.New(rdb)
	window := fixedwindow.New(client, fixedwindow.Config{Limit: 100, Window: time.Minute})
	log := slidinglog.New(client, slidinglog.Config{Limit: 3, Window: time.Minute, Thresholds: "rate:limit:config"})
	bucket := tokenbucket.New(client, tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Second})

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

// Four programs share the limiter: while Redis is away, each has a quarter of the rate.
func ExampleWithFailure() {
	client, server, stop := connect(
		rratelimiter.WithFailure(limit.FailLocal(0.25)), rratelimiter.WithCallTimeout(100*time.Millisecond))
	defer stop()
	orders := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(20)))

	server.SetError("CLUSTERDOWN The cluster is down")
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

// Most callers are served without a round trip: each request to Redis takes
// permits for those to come.
func ExampleWithLease() {
	client, _, stop := connect()
	defer stop()

	limiter := client.RateLimiter("events",
		rratelimiter.WithDefault(rratelimiter.PerSecond(1_000_000)),
		rratelimiter.WithLease(rratelimiter.Lease{Permits: 50_000, Life: 20 * time.Millisecond}))
	granted := 0
	for range 10_000 {
		ok, err := limiter.TryAcquire(ctx, 1, 0)
		if err != nil {
			fmt.Println(err)
		}
		if ok {
			granted++
		}
	}
	fmt.Println(granted)
	// Output: 10000
}

// Who is refused once is refused without a round trip until permits can be there.
func ExampleWithRefusalCache() {
	client, _, stop := connect()
	defer stop()

	limiter := client.RateLimiter("logins", rratelimiter.WithDefault(rratelimiter.PerHour(2)),
		rratelimiter.WithRefusalCache())
	for range 4 {
		fmt.Println(limiter.TryAcquire(ctx, 1, 0))
	}
	_ = limiter.Release(ctx, 1)
	fmt.Println(limiter.TryAcquire(ctx, 1, 0))
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
	// false <nil>
	// true <nil>
}

// A grant that a failover could lose does not count. The Redis of this example has no
// replica.
func ExampleWithReplicas() {
	client, _, stop := connect(rratelimiter.WithReplicas(1, 100*time.Millisecond))
	defer stop()
	coupons := client.RateLimiter("coupons", rratelimiter.WithDefault(rratelimiter.PerDay(1000)))

	ok, err := coupons.TryAcquire(ctx, 1, 0)
	fmt.Println(ok, errors.Is(err, rratelimiter.ErrNotReplicated))
	// Output: false true
}

// These settings suit most services: docs/production.md has their reasons.
func Example_production() {
	server := startRedis()
	defer server.Close()
	addr := server.Addr()

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
	rdb, server, stop := openRedis()
	defer stop()

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
	rdb, server, stop := openRedis()
	defer stop()
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
		if err := orders.Wait(ctx); err != nil {
			return err
		}
		return nil
	}
	jobs := client.RateLimiter("jobs", rratelimiter.WithDefault(rratelimiter.PerHour(100)))
	work := func() error {
		if err := jobs.Acquire(ctx, 2); err != nil {
			return err
		}
		defer func() { _ = jobs.Release(context.WithoutCancel(ctx), 2) }()
		return nil
	}
	pay := func() {
		bucket := tokenbucket.New(client, tokenbucket.Config{Capacity: 5, Refill: 1, Interval: 6 * time.Second})
		decision, err := bucket.Take(ctx, "{users:ann}", 1)
		fmt.Println(decision.Remaining, err)
	}
	for range 10 {
		_ = visit()
	}
	fmt.Println(visit(), order(), work())
	pay()
	granted, decision, err := orders.TakeUpTo(ctx, 500)
	fmt.Println(granted, decision.Remaining, err)

	perClient := httplimit.New(client.Keyed("", rratelimiter.PerMinute(10)), httplimit.WithPrefix("users:"), httplimit.WithLegacyHeaders())
	handler := perClient.Handler(mux)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	fmt.Println(w.Header().Get("X-RateLimit-Remaining"), server.Exists("users:192.0.2.1"))
	// Output:
	// try again in 1m0s <nil> <nil>
	// 4 <nil>
	// 99 0 <nil>
	// 9 true
}

// Ten jobs at once in all programs, each for as long as it takes.
func ExampleReservation_Renew() {
	client, server, stop := connect()
	defer stop()
	jobs := client.RateLimiter("exports", rratelimiter.WithDefault(rratelimiter.PerMinute(10))) // 10 at once

	export := func(ctx context.Context, work func(context.Context) error) error {
		r, err := jobs.Reserve(ctx, 1, time.Hour)
		if err != nil || !r.Granted {
			return errors.Join(errors.New("not now"), err)
		}
		defer func() { _ = r.Cancel(ctx) }()

		working, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		go func() {
			for renewed := time.Now(); ; {
				select {
				case <-working.Done():
					return
				case <-time.After(20 * time.Second):
				}
				if err := r.Renew(ctx); err == nil {
					renewed = time.Now()
				} else if errors.Is(err, rratelimiter.ErrSettled) || time.Since(renewed) > 50*time.Second {
					stop(err) // others may have the place
				}
			}
		}()
		return work(working)
	}
	fmt.Println(export(ctx, func(context.Context) error {
		fmt.Println(jobs.AvailablePermits(ctx))
		return nil
	}))
	fmt.Println(jobs.AvailablePermits(ctx))

	r, _ := jobs.Reserve(ctx, 1, 0)
	server.SetTime(noon.Add(50 * time.Second))
	fmt.Println(r.Renew(ctx))
	server.SetTime(noon.Add(100 * time.Second))
	fmt.Println(jobs.AvailablePermits(ctx)) // it counts from the last Renew on
	server.SetTime(noon.Add(110 * time.Second))
	fmt.Println(errors.Is(r.Renew(ctx), rratelimiter.ErrSettled))
	// Output:
	// 9 <nil>
	// <nil>
	// 10 <nil>
	// <nil>
	// 9 <nil>
	// true
}

// A hundred requests a minute and ten at once: the second of these limits is free again when a request ends.
func ExampleClient_Keyed_inFlight() {
	client, _, stop := connect()
	defer stop()

	limits := httplimit.New(
		httplimit.Policy{Name: "rate", Limiter: client.Keyed("", rratelimiter.PerMinute(100))},
		httplimit.WithPolicy(httplimit.Policy{
			Name: "at-once", Limiter: client.Keyed("", rratelimiter.PerMinute(10)), InFlight: true,
		}),
		httplimit.WithKey(httplimit.Header("X-Account")), httplimit.WithHashTag(),
	)
	handler := limits.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		fmt.Println(w.Header().Get("RateLimit"))
	}
	// Output:
	// "rate";r=99;t=60, "at-once";r=9
	// "rate";r=98;t=60, "at-once";r=9
}

// Only failed logins count.
func ExampleClient_Keyed_byOutcome() {
	client, _, stop := connect()
	defer stop()

	logins := httplimit.Policy{Limiter: client.Keyed("", rratelimiter.PerHour(5)), Charge: func(_ *http.Request, status int) int64 {
		if status == http.StatusUnauthorized {
			return 1
		}
		return 0
	}}
	handler := httplimit.New(logins).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("password") != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	for _, password := range []string{"secret", "guess", "secret"} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/login?password="+password, http.NoBody))
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
	}
	// Output:
	// 200 "default";r=4;t=3600
	// 401 "default";r=4;t=3600
	// 200 "default";r=3;t=3600
}
