package rratelimiter_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

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

// connect returns a Client of a new Redis, and what stops both.
func connect(opts ...rratelimiter.Option) (*rratelimiter.Client, *miniredis.Miniredis, func()) {
	server := startRedis()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	client := rratelimiter.New(rdb, opts...)
	return client, server, func() {
		_ = client.Close(context.Background())
		_ = rdb.Close()
		server.Close()
	}
}

func Example() {
	server := startRedis()
	defer server.Close()
	ctx, addr := context.Background(), server.Addr()

	rdb := redis.NewClient(&redis.Options{Addr: addr})
	client := rratelimiter.New(rdb)
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerSecond(100)))
	ok, err := limiter.TryAcquire(ctx, 1, 200*time.Millisecond)
	fmt.Println(ok, err)

	_ = client.Close(ctx)
	_ = rdb.Close()
	// Output: true <nil>
}

// A refusal is no error. Errors are told apart by errors.Is.
func Example_errors() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()
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
	ctx := context.Background()

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

// A handle costs nothing: make one wherever it is needed.
func ExampleClient_RateLimiter() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()

	for _, user := range []string{"ann", "bob", "ann"} {
		limiter := client.RateLimiter("api:"+user, rratelimiter.WithDefault(rratelimiter.PerMinute(1)))
		ok, err := limiter.TryAcquire(ctx, 1, 0)
		fmt.Println(limiter.Name(), ok, err)
	}
	// Output:
	// api:ann true <nil>
	// api:bob true <nil>
	// api:ann false <nil>
}

// Close answers those who wait before the program ends.
func ExampleClient_Close() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(1)))
	if err := limiter.Acquire(ctx, 1); err != nil {
		fmt.Println(err)
	}

	waiting := make(chan error)
	go func() { waiting <- limiter.Acquire(ctx, 1) }()
	timeout, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	fmt.Println(client.Close(timeout))
	fmt.Println(errors.Is(<-waiting, rratelimiter.ErrClosed))
	// Output:
	// <nil>
	// true
}

// The first request sets the limiter up, in the same round trip. A rate that
// the limiter has already stays.
func ExampleWithDefault() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()

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
	server := startRedis()
	defer server.Close()
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()

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

// Java services with Redisson 3.15.5 and newer share the limiter.
func ExampleWithRedissonVersion() {
	client, _, stop := connect(rratelimiter.WithRedissonVersion("3.15.5"))
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
	fmt.Println(limiter.TryAcquire(ctx, 2, 0))
	// Output: true <nil>
}

// The last service with an old Redisson has been upgraded.
func ExampleClient_Migrate() {
	old, server, stop := connect(rratelimiter.WithRedissonVersion("3.15.5"))
	defer stop()
	ctx := context.Background()
	limiter := old.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
	for range 3 {
		_, _ = limiter.TryAcquire(ctx, 2, 0)
	}

	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()
	client := rratelimiter.New(rdb)
	members, err := client.Migrate(ctx, "orders")
	fmt.Println(members, "members rewritten", err)
	free, err := client.RateLimiter("orders").AvailablePermits(ctx)
	fmt.Println(free, "free", err)
	_ = client.Close(ctx)
	// Output:
	// 3 members rewritten <nil>
	// 4 free <nil>
}

func ExampleWithNameMapper() {
	client, server, stop := connect(rratelimiter.WithNameMapper(func(name string) string { return "shop:" + name }))
	defer stop()

	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
	if err := limiter.Acquire(context.Background(), 1); err != nil {
		fmt.Println(err)
	}
	fmt.Println(limiter.Name())
	for _, key := range server.Keys() {
		fmt.Println(key)
	}
	// Output:
	// orders
	// shop:orders
	// {shop:orders}:permits
	// {shop:orders}:value
}

// Ten a second and a thousand an hour: both are charged, or none.
func ExampleClient_TryAcquireAll_two() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()

	second := client.RateLimiter("{shop}:second", rratelimiter.WithDefault(rratelimiter.PerSecond(10)))
	hour := client.RateLimiter("{shop}:hour", rratelimiter.WithDefault(rratelimiter.PerHour(1000)))
	ok, err := client.TryAcquireAll(ctx, 1, 0, second, hour)
	fmt.Println(ok, err)
	// Output: true <nil>
}

func ExampleRateLimiter_TryAcquire() {
	client, server, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerSecond(2)))

	for range 3 {
		ok, err := limiter.TryAcquire(ctx, 1, 10*time.Millisecond)
		fmt.Println(ok, err)
	}
	server.SetTime(noon.Add(time.Second)) // the permits are back
	ok, err := limiter.TryAcquire(ctx, 2, 0)
	fmt.Println(ok, err)
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
	// true <nil>
}

// Whoever stops waiting, by a context, leaves no permits taken.
func ExampleRateLimiter_TryAcquire_context() {
	client, _, stop := connect()
	defer stop()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(1)))
	if err := limiter.Acquire(context.Background(), 1); err != nil {
		fmt.Println(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	ok, err := limiter.TryAcquire(ctx, 1, time.Hour)
	fmt.Println(ok, errors.Is(err, context.DeadlineExceeded))
	// Output: false true
}

func ExampleRateLimiter_Acquire() {
	client, server, stop := connect()
	defer stop()
	server.SetTime(time.Time{}) // the clock runs
	ctx := context.Background()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.Config{
		Rate:     3,
		Interval: 20 * time.Millisecond,
	}))

	start := time.Now()
	var callers sync.WaitGroup
	for range 9 {
		callers.Go(func() {
			if err := limiter.Acquire(ctx, 1); err != nil {
				fmt.Println(err)
			}
		})
	}
	callers.Wait()
	// The last three come two intervals after the first three.
	fmt.Println(time.Since(start) >= 40*time.Millisecond)
	// Output: true
}

func ExampleRateLimiter_Take() {
	client, server, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))

	for range 2 {
		d, err := limiter.Take(ctx, 6)
		fmt.Printf("granted %t, %d of %d left, retry after %v, full after %v, %v\n",
			d.Granted, d.Remaining, d.Limit, d.RetryAfter, d.ResetAfter, err)
		server.SetTime(noon.Add(15 * time.Second))
	}
	// Output:
	// granted true, 4 of 10 left, retry after 0s, full after 1m0s, <nil>
	// granted false, 4 of 10 left, retry after 45s, full after 45s, <nil>
}

func ExampleRateLimiter_TrySetRate() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("orders")

	_, err := limiter.TryAcquire(ctx, 1, 0)
	fmt.Println(errors.Is(err, rratelimiter.ErrNotInitialized))
	fmt.Println(limiter.TrySetRate(ctx, rratelimiter.PerMinute(10)))
	fmt.Println(limiter.TrySetRate(ctx, rratelimiter.PerMinute(20)))
	fmt.Println(limiter.AvailablePermits(ctx))
	// Output:
	// true
	// true <nil>
	// false <nil>
	// 10 <nil>
}

func ExampleRateLimiter_SetRate() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
	if err := limiter.Acquire(ctx, 4); err != nil {
		fmt.Println(err)
	}

	fmt.Println(limiter.SetRate(ctx, rratelimiter.PerMinute(20)))
	fmt.Println(limiter.AvailablePermits(ctx))
	// Output:
	// <nil>
	// 20 <nil>
}

func ExampleKeepState() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
	if err := limiter.Acquire(ctx, 4); err != nil {
		fmt.Println(err)
	}

	fmt.Println(limiter.SetRate(ctx, rratelimiter.PerMinute(20), rratelimiter.KeepState()))
	fmt.Println(limiter.AvailablePermits(ctx))
	// Output:
	// <nil>
	// 16 <nil>
}

// UpdateRate makes no limiter: a deleted one stays deleted.
func ExampleRateLimiter_UpdateRate() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("orders")

	fmt.Println(limiter.UpdateRate(ctx, rratelimiter.PerMinute(10)))
	fmt.Println(limiter.SetRate(ctx, rratelimiter.PerMinute(10)))
	fmt.Println(limiter.UpdateRate(ctx, rratelimiter.PerMinute(20)))
	// Output:
	// false <nil>
	// <nil>
	// true <nil>
}

func ExampleRateLimiter_Config() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("mail")
	set, err := limiter.TrySetRate(ctx, rratelimiter.Config{
		Type:      rratelimiter.PerClient,
		Rate:      5,
		Interval:  time.Minute,
		KeepAlive: time.Hour,
	})
	fmt.Println(set, err)

	cfg, err := limiter.Config(ctx)
	fmt.Println(cfg.Type, cfg.Rate, cfg.Interval, cfg.KeepAlive, err)
	// Output:
	// true <nil>
	// PER_CLIENT 5 1m0s 1h0m0s <nil>
}

// Permits that turn out not to be needed go back at once.
func ExampleRateLimiter_Release() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))

	if err := limiter.Acquire(ctx, 8); err != nil {
		fmt.Println(err)
	}
	if err := limiter.Release(ctx, 5); err != nil {
		fmt.Println(err)
	}
	fmt.Println(limiter.AvailablePermits(ctx))
	// Output: 7 <nil>
}

// Each permit comes back one interval after it was granted.
func ExampleRateLimiter_AvailablePermits() {
	client, server, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))

	for _, passed := range []time.Duration{0, 20 * time.Second, 40 * time.Second} {
		server.SetTime(noon.Add(passed))
		if err := limiter.Acquire(ctx, 2); err != nil {
			fmt.Println(err)
		}
	}
	for _, passed := range []time.Duration{59 * time.Second, 60 * time.Second, 80 * time.Second, 100 * time.Second} {
		server.SetTime(noon.Add(passed))
		free, err := limiter.AvailablePermits(ctx)
		fmt.Println(passed, free, err)
	}
	// Output:
	// 59s 4 <nil>
	// 1m0s 6 <nil>
	// 1m20s 8 <nil>
	// 1m40s 10 <nil>
}

func ExampleRateLimiter_Expire() {
	client, server, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("sale", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
	if err := limiter.Acquire(ctx, 1); err != nil {
		fmt.Println(err)
	}

	fmt.Println(limiter.Expire(ctx, time.Hour))
	server.SetTime(noon.Add(time.Hour))
	fmt.Println(limiter.Exists(ctx))
	// Output:
	// true <nil>
	// false <nil>
}

func ExampleRateLimiter_ExpireAt() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("sale")
	if err := limiter.SetRate(ctx, rratelimiter.PerMinute(10)); err != nil {
		fmt.Println(err)
	}

	midnight := time.Date(2026, time.November, 22, 0, 0, 0, 0, time.UTC)
	fmt.Println(limiter.ExpireAt(ctx, midnight))
	fmt.Println(limiter.TTL(ctx))
	// Output:
	// true <nil>
	// 12h0m0s true <nil>
}

func ExampleRateLimiter_ClearExpire() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("sale")
	if err := limiter.SetRate(ctx, rratelimiter.PerMinute(10)); err != nil {
		fmt.Println(err)
	}

	fmt.Println(limiter.Expire(ctx, time.Hour))
	fmt.Println(limiter.ClearExpire(ctx))
	fmt.Println(limiter.ClearExpire(ctx))
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
}

// A keep-alive time counts anew from each request for permits.
func ExampleRateLimiter_TTL() {
	client, server, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("orders")

	_, _, err := limiter.TTL(ctx)
	fmt.Println(errors.Is(err, rratelimiter.ErrNotInitialized))

	cfg := rratelimiter.PerMinute(10)
	if err := limiter.SetRate(ctx, cfg); err != nil {
		fmt.Println(err)
	}
	fmt.Println(limiter.TTL(ctx))

	cfg.KeepAlive = time.Hour
	if err := limiter.SetRate(ctx, cfg); err != nil {
		fmt.Println(err)
	}
	server.SetTime(noon.Add(10 * time.Minute))
	fmt.Println(limiter.TTL(ctx))
	if err := limiter.Acquire(ctx, 1); err != nil {
		fmt.Println(err)
	}
	fmt.Println(limiter.TTL(ctx))
	// Output:
	// true
	// 0s false <nil>
	// 50m0s true <nil>
	// 1h0m0s true <nil>
}

func ExampleRateLimiter_Exists() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("orders")

	fmt.Println(limiter.Exists(ctx))
	if err := limiter.SetRate(ctx, rratelimiter.PerMinute(10)); err != nil {
		fmt.Println(err)
	}
	fmt.Println(limiter.Exists(ctx))
	// Output:
	// false <nil>
	// true <nil>
}

func ExampleRateLimiter_Delete() {
	client, server, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
	if err := limiter.Acquire(ctx, 1); err != nil {
		fmt.Println(err)
	}

	fmt.Println(limiter.Delete(ctx))
	fmt.Println(server.Keys())
	fmt.Println(limiter.Delete(ctx))
	// Output:
	// true <nil>
	// []
	// false <nil>
}

// The permits in use move along. On a cluster both names need one hash tag, as
// in "{shop}orders" and "{shop}sales".
func ExampleRateLimiter_Rename() {
	client, _, stop := connect()
	defer stop()
	ctx := context.Background()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
	if err := limiter.Acquire(ctx, 3); err != nil {
		fmt.Println(err)
	}

	if err := limiter.Rename(ctx, "sales"); err != nil {
		fmt.Println(err)
	}
	fmt.Println(client.RateLimiter("sales").AvailablePermits(ctx))
	fmt.Println(limiter.Exists(ctx))
	// Output:
	// 7 <nil>
	// false <nil>
}
