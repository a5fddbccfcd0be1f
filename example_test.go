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
	ok, err := limiter.TryAcquire(ctx, 1, 2*time.Second)
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

// Two programs share the permits of a limiter.
func ExampleNew() {
	rdb, _, stop := openRedis() // redis.NewClient makes one
	defer stop()
	for range 2 {
		client := rratelimiter.New(rdb)
		d, err := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10))).Take(ctx, 3)
		fmt.Println(d.Remaining, err)
		_ = client.Close(ctx)
	}
	// Output:
	// 7 <nil>
	// 4 <nil>
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

// Ten a second and a thousand an hour: both are charged, or none.
func ExampleClient_TryAcquireAll() {
	client, _, stop := connect()
	defer stop()

	second := client.RateLimiter("{shop}:second", rratelimiter.WithDefault(rratelimiter.PerSecond(10)))
	hour := client.RateLimiter("{shop}:hour", rratelimiter.WithDefault(rratelimiter.PerHour(1000)))
	ok, err := client.TryAcquireAll(ctx, 0, second.Claim(1), hour.Claim(1))
	fmt.Println(ok, err)
	// Output: true <nil>
}

func ExampleRateLimiter_Take() {
	client, server, stop := connect()
	defer stop()
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

// The tokens of a language model's answer are known when it is there.
func ExampleRateLimiter_Reserve() {
	client, server, stop := connect()
	defer stop()
	limiter := client.RateLimiter("tokens", rratelimiter.WithDefault(rratelimiter.PerMinute(1000)))

	ask := func(estimate int64, answer func() (tokens int64, err error)) error {
		r, err := limiter.Reserve(ctx, estimate, 0)
		if err != nil || !r.Granted {
			return errors.Join(errors.New("not now"), err)
		}
		defer func() { _ = r.Cancel(ctx) }() // if there is no answer
		tokens, err := answer()
		if err != nil {
			return err
		}
		return r.Settle(ctx, tokens)
	}
	fmt.Println(ask(800, func() (int64, error) { return 300, nil }))
	fmt.Println(ask(600, func() (int64, error) { return 0, errors.New("no answer") }))
	fmt.Println(limiter.AvailablePermits(ctx))

	server.SetTime(noon.Add(20 * time.Second))
	fmt.Println(ask(600, func() (int64, error) { return 900, nil })) // 200 more than are free
	fmt.Println(ask(1, func() (int64, error) { return 1, nil }))
	server.SetTime(noon.Add(time.Minute)) // the first 300 are back
	fmt.Println(limiter.AvailablePermits(ctx))
	// Output:
	// <nil>
	// no answer
	// 700 <nil>
	// <nil>
	// not now
	// 100 <nil>
}

// Called as a program starts, it makes the rate in the code win.
func ExampleKeepState() {
	client, _, stop := connect()
	defer stop()
	orders := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
	fmt.Println(orders.Acquire(ctx, 4))

	start := func() error {
		if err := orders.SetRate(ctx, rratelimiter.PerSecond(100), rratelimiter.KeepState()); err != nil {
			return err
		}
		return nil
	}
	fmt.Println(start())
	fmt.Println(orders.AvailablePermits(ctx)) // the 4 are still in use
	// Output:
	// <nil>
	// <nil>
	// 96 <nil>
}

// Ten times the rate for a migration; it ends by itself.
func ExampleFor() {
	client, server, stop := connect()
	defer stop()
	orders := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
	fmt.Println(orders.Acquire(ctx, 4))
	fmt.Println(orders.SetRate(ctx, rratelimiter.PerMinute(100), rratelimiter.For(20*time.Hour)))
	fmt.Println(orders.AvailablePermits(ctx))
	override, _, err := orders.Override(ctx)
	fmt.Println("then", override.Then.Rate, err)

	server.SetTime(noon.Add(20 * time.Hour))
	fmt.Println(orders.AvailablePermits(ctx))
	// Output:
	// <nil>
	// <nil>
	// 96 <nil>
	// then 10 <nil>
	// 10 <nil>
}

// A call to a language model counts as one request and as the tokens that it costs, which are estimated first. If the
// program dies meanwhile, the estimate is free again after two minutes, not after a day.
func ExampleClient_ReserveAll() {
	client, _, stop := connect()
	defer stop()
	requests := client.Keyed("requests:", rratelimiter.PerMinute(60))
	tokens := client.Keyed("tokens:", rratelimiter.PerDay(1000))
	call := func(estimate, cost int64) {
		r, err := client.ReserveAll(ctx, 0,
			requests.Claim("{ann}", 1),
			tokens.Claim("{ann}", estimate, rratelimiter.Hold(2*time.Minute)))
		if err != nil {
			fmt.Println(err)
			return
		}
		if !r.Granted {
			fmt.Println(r.Decisions[0].Granted, r.Decisions[1].Granted)
			return
		}
		fmt.Println(r.Settle(ctx, 1, cost))
	}

	call(800, 300)
	call(800, 300)
	decisions, err := client.TakeAll(ctx, requests.Claim("{ann}", 1), tokens.Claim("{ann}", 100))
	fmt.Println(decisions[0].Remaining, decisions[1].Remaining, err)
	// Output:
	// <nil>
	// true false
	// 58 600 <nil>
}

// With a lease a busy program answers most requests from memory: what it takes ahead of a
// user's limit is charged at once, and what is left goes back.
func ExampleWithLease() {
	client, _, stop := connect()
	defer stop()

	perUser := client.Keyed("orders:", rratelimiter.PerMinute(1000),
		rratelimiter.WithLease(rratelimiter.Lease{}), rratelimiter.WithRefusalCache())
	if err := perUser.Err(); err != nil {
		fmt.Println(err) // a bad option
	}
	for i := range 100 {
		d, err := perUser.Take(ctx, "ann", 1)
		if i%25 == 0 {
			fmt.Println(d.Granted, d.Limit, d.Remaining, err)
		}
	}
	// Output:
	// true 1000 999 <nil>
	// true 1000 974 <nil>
	// true 1000 949 <nil>
	// true 1000 924 <nil>
}

// refusals counts what each limiter refused. The methods that it lacks are those of
// NoObserver.
type refusals struct {
	limit.NoObserver
	permits map[string]int64
}

func (r *refusals) Decided(_ context.Context, d limit.Decided) {
	if d.Outcome == limit.Refused {
		r.permits[d.Limiter] += d.Permits // a program of several goroutines takes a lock
	}
}

func ExampleWithObserver() {
	observer := &refusals{permits: map[string]int64{}}
	client, _, stop := connect(rratelimiter.WithObserver(observer))
	defer stop()

	users := client.Keyed("users:", rratelimiter.PerMinute(2))
	for _, name := range []string{"ann", "bob", "ann", "ann"} {
		if _, err := users.Take(ctx, name, 1); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(observer.permits)
	// Output: map[users::1]
}
