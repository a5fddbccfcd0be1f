package rratelimiter_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Ten a second and a thousand an hour: both are charged, or none.
func ExampleClient_TryAcquireAll_two() {
	client, _, stop := connect()
	defer stop()

	second := client.RateLimiter("{shop}:second", rratelimiter.WithDefault(rratelimiter.PerSecond(10)))
	hour := client.RateLimiter("{shop}:hour", rratelimiter.WithDefault(rratelimiter.PerHour(1000)))
	ok, err := client.TryAcquireAll(ctx, 0, second.Claim(1), hour.Claim(1))
	fmt.Println(ok, err)
	// Output: true <nil>
}

func ExampleRateLimiter_TryAcquire() {
	client, server, stop := connect()
	defer stop()
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

// Much code takes anything that has Wait, such as golang.org/x/time/rate's limiters.
func ExampleRateLimiter_Wait() {
	client, _, stop := connect()
	defer stop()
	call := func(limiter interface{ Wait(context.Context) error }) error { return limiter.Wait(ctx) }

	limiter := client.RateLimiter("partner", rratelimiter.WithDefault(rratelimiter.PerMinute(5)))
	err := call(limiter)
	free, _ := limiter.AvailablePermits(ctx)
	fmt.Println(err, free)
	// Output: <nil> 4
}

// A job that must begin within a second learns at once that it can't have its permits by then.
func ExampleRateLimiter_WaitN() {
	client, _, stop := connect()
	defer stop()

	limiter := client.RateLimiter("mails", rratelimiter.WithDefault(rratelimiter.PerMinute(100)))
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	fmt.Println(limiter.WaitN(soon, 80))
	fmt.Println(limiter.WaitN(soon, 80))
	// Output:
	// <nil>
	// rratelimiter: WaitN "mails": fewer than 80 permits are free before the deadline, so many are in 1m0s: context deadline exceeded
}

// A program that stops as it starts, rather than with its first request.
func ExampleRateLimiter_Err() {
	client, _, stop := connect()
	defer stop()

	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerSecond(0)))
	fmt.Println(client.Err())
	fmt.Println(limiter.Err())
	// Output:
	// <nil>
	// rratelimiter: RateLimiter "orders": WithDefault: invalid configuration: rate 0 is not between 1 and 9007199254740991
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

// A day's tokens that a program reserved before it died come back after a minute, not after a day.
func ExampleHold() {
	client, server, stop := connect()
	defer stop()
	limiter := client.RateLimiter("tokens", rratelimiter.WithDefault(rratelimiter.PerDay(1000)))

	r, _ := limiter.Reserve(ctx, 600, 0, rratelimiter.Hold(time.Minute))
	settled, _ := limiter.Reserve(ctx, 300, 0, rratelimiter.Hold(time.Minute))
	fmt.Println(settled.Settle(ctx, 200))
	server.SetTime(noon.Add(time.Minute))
	fmt.Println(limiter.AvailablePermits(ctx))

	fmt.Println(r.Settle(ctx, 500)) // late: from now on
	fmt.Println(limiter.AvailablePermits(ctx))
	// Output:
	// <nil>
	// 800 <nil>
	// <nil>
	// 300 <nil>
}

func ExampleRateLimiter_TrySetRate() {
	client, _, stop := connect()
	defer stop()
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

// Each permit comes back one interval after it was granted.
func ExampleRateLimiter_AvailablePermits() {
	client, server, stop := connect()
	defer stop()
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

// A keep-alive time counts anew from each request for permits.
func ExampleRateLimiter_TTL() {
	client, server, stop := connect()
	defer stop()
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

// The permits in use move along. On a cluster both names need one hash tag, as
// in "{shop}orders" and "{shop}sales".
func ExampleRateLimiter_Rename() {
	client, _, stop := connect()
	defer stop()
	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
	fmt.Println(limiter.Acquire(ctx, 3))

	if err := limiter.Rename(ctx, "sales"); err != nil {
		fmt.Println(err)
	}
	fmt.Println(client.RateLimiter("sales").AvailablePermits(ctx))
	fmt.Println(limiter.Exists(ctx))
	// Output:
	// <nil>
	// 7 <nil>
	// false <nil>
}

// A shop takes 3 orders a second and 5 an hour from each user, and 100 a second
// from all: an order passes all three limits or uses none of them up.
func ExampleClient_TryAcquireAll() {
	client, server, stop := connect()
	defer stop()
	order := func(user string) {
		ok, err := client.TryAcquireAll(ctx, 0,
			client.RateLimiter("{shop}:all", rratelimiter.WithDefault(rratelimiter.PerSecond(100))).Claim(1),
			client.RateLimiter("{shop}:second:"+user, rratelimiter.WithDefault(rratelimiter.PerSecond(3))).Claim(1),
			client.RateLimiter("{shop}:hour:"+user, rratelimiter.WithDefault(rratelimiter.PerHour(5))).Claim(1))
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

// Peek says what Take would answer, or with 0 what is free, and takes nothing.
func ExampleRateLimiter_Peek() {
	client, _, stop := connect()
	defer stop()

	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(3)))
	for range 2 {
		d, err := limiter.Peek(ctx, 2)
		fmt.Println(d.Granted, d.Remaining, err)
	}
	if err := limiter.Acquire(ctx, 2); err != nil {
		fmt.Println(err)
	}
	d, err := limiter.Peek(ctx, 2)
	fmt.Println(d.Granted, d.Remaining, d.RetryAfter, err)
	d, err = limiter.Peek(ctx, 0)
	fmt.Println(d.Remaining, "free,", err)
	// Output:
	// true 1 <nil>
	// true 1 <nil>
	// false 1 1m0s <nil>
	// 1 free, <nil>
}

// A worker takes as much of its backlog as the limit has room for.
func ExampleRateLimiter_TakeUpTo() {
	client, _, stop := connect()
	defer stop()

	limiter := client.RateLimiter("mails", rratelimiter.WithDefault(rratelimiter.PerMinute(100)))
	for backlog := int64(250); backlog > 0; {
		taken, d, err := limiter.TakeUpTo(ctx, backlog)
		fmt.Println(taken, d.Granted, d.RetryAfter, err)
		if !d.Granted {
			break
		}
		backlog -= taken
	}
	// Output:
	// 100 true 0s <nil>
	// 0 false 1m0s <nil>
}

// With a lease a busy program answers most requests from memory: what it takes ahead of a
// user's limit is charged at once, and what is left goes back.
func ExampleClient_Keyed_lease() {
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
