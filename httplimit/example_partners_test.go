package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
)

// A partner allows 20 calls a second and 10,000 a day, from midnight to midnight. What it says to one program holds in all.
func ExampleNewTransport_partner() {
	rdb, stop := limittest.ConnectExample()
	defer stop()
	partner := answers(http.StatusOK) // in place of http.DefaultTransport

	client := rratelimiter.New(rdb)
	second := client.Keyed("", rratelimiter.Config{Rate: 20, Interval: 1100 * time.Millisecond}) // 100 ms more than the partner's
	day := fixedwindow.New(client, fixedwindow.Config{Limit: 10_000, Calendar: fixedwindow.Daily(time.UTC)})
	transport := httplimit.NewTransport(partner, httplimit.Policy{Name: "second", Limiter: second},
		httplimit.WithPolicy(httplimit.Policy{Name: "day", Limiter: day}),
		httplimit.WithSharedPause(client))
	calls := &http.Client{Transport: transport}

	if err := transport.Err(); err != nil {
		fmt.Println(err)
		return
	}
	resp, err := calls.Get("https://api.example.org/orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = resp.Body.Close()
	left, err := day.Peek(context.Background(), "upstream:day:api.example.org", 0)
	fmt.Println(resp.StatusCode, left.Remaining, err)
	// Output: 200 9999 <nil>
}

// A tenant's own limiter stands before the one that all share, so that a tenant who floods waits there.
func ExampleNewTransport_tenants() {
	rdb, stop := limittest.ConnectExample()
	defer stop()
	partner := answers(http.StatusOK)
	client := rratelimiter.New(rdb)
	second := client.Keyed("", rratelimiter.PerSecond(20))
	tenantOf := func(r *http.Request) string { return r.Header.Get("X-Tenant") }

	shared := httplimit.NewTransport(partner, second, httplimit.WithSharedPause(client))
	transport := httplimit.NewTransport(shared, client.Keyed("", rratelimiter.PerSecond(15)),
		httplimit.WithPrefix("tenant:"), httplimit.WithKey(httplimit.Host(), httplimit.User(tenantOf)))

	resp, err := (&http.Client{Transport: transport}).Get("https://api.example.org/orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}

// What can't be sent in time is rejected when it comes: Peek says in how long it could be sent, and WaitN waits for its
// permits only if they come in time.
func ExampleNewTransport_deadline() {
	rdb, stop := limittest.ConnectExample()
	defer stop()
	client := rratelimiter.New(rdb)
	minute := client.Keyed("", rratelimiter.PerMinute(20))
	send := func(ctx context.Context, calls int64) error {
		d, err := minute.Peek(ctx, "partner", calls)
		if err != nil {
			return err
		}
		fmt.Println("in", d.RetryAfter)
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if err := minute.WaitN(ctx, "partner", calls); errors.Is(err, context.DeadlineExceeded) {
			return errors.New("not in time") // at once
		} else if err != nil {
			return err
		}
		return nil // send them
	}

	fmt.Println(send(context.Background(), 15))
	fmt.Println(send(context.Background(), 15))
	// Output:
	// in 0s
	// <nil>
	// in 1m0s
	// not in time
}
