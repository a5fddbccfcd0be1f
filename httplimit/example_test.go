package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// get shows what a client at that address gets.
func get(handler http.Handler, peer, path string, header ...string) {
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	r.RemoteAddr = peer + ":4711"
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	fmt.Println(strings.TrimSpace(fmt.Sprintf("%d %s", w.Code, w.Header().Get("RateLimit"))))
	if wait := w.Header().Get("Retry-After"); wait != "" {
		fmt.Println("    try again in", wait, "s")
	}
}

// Each client has two requests a minute.
func ExampleNew() {
	rdb, stop := limittest.ConnectExample()
	defer stop()

	client := rratelimiter.New(rdb)
	perMinute := slidinglog.New(client, slidinglog.Config{Limit: 2, Window: time.Minute})
	handler := httplimit.New(perMinute).Handler(http.NotFoundHandler())

	for range 3 {
		get(handler, "192.0.2.1", "/")
	}
	get(handler, "192.0.2.2", "/")
	// Output:
	// 404 "default";r=1;t=60
	// 404 "default";r=0;t=60
	// 429 "default";r=0;t=60
	//     try again in 60 s
	// 404 "default";r=1;t=60
}

// Ten requests at once and no more than a thousand an hour: the answer tells of
// both, and a request that one of them refuses uses up nothing of the other.
func ExampleWithPolicy() {
	rdb, stop := limittest.ConnectExample()
	defer stop()

	client := rratelimiter.New(rdb)
	burst := tokenbucket.New(client, tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Second})
	hour := slidinglog.New(client, slidinglog.Config{Limit: 1000, Window: time.Hour})
	handler := httplimit.New(httplimit.Policy{Name: "burst", Limiter: burst}, httplimit.WithHashTag(),
		httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: hour}),
		httplimit.WithCost(func(r *http.Request) (int64, error) {
			if r.URL.Path == "/report" {
				return 8, nil
			}
			return 1, nil
		}),
	).Handler(http.NotFoundHandler())

	get(handler, "192.0.2.1", "/")
	get(handler, "192.0.2.1", "/report")
	get(handler, "192.0.2.1", "/report")
	get(handler, "192.0.2.1", "/")
	// Output:
	// 404 "burst";r=9;t=1, "hour";r=999;t=3600
	// 404 "burst";r=1;t=9, "hour";r=991;t=3600
	// 429 "burst";r=1;t=7, "hour";r=991
	//     try again in 7 s
	// 404 "burst";r=0;t=10, "hour";r=990;t=3600
}

// Two requests a user and three an address: each has keys of its own.
func ExamplePolicy() {
	rdb, stop := limittest.ConnectExample()
	defer stop()

	client := rratelimiter.New(rdb)
	perUser := slidinglog.New(client, slidinglog.Config{Limit: 2, Window: time.Minute})
	perAddress := slidinglog.New(client, slidinglog.Config{Limit: 3, Window: time.Minute})
	userOf := func(r *http.Request) string { return r.URL.Query().Get("user") }
	handler := httplimit.New(
		httplimit.Policy{Name: "user", Limiter: perUser, Prefix: "user:", Key: []httplimit.KeyFunc{httplimit.User(userOf)}},
		httplimit.WithPolicy(httplimit.Policy{
			Name: "address", Limiter: perAddress, Prefix: "client:",
			Key: []httplimit.KeyFunc{httplimit.ClientIP(httplimit.ClientIPConfig{})},
		}),
	).Handler(http.NotFoundHandler())

	for _, user := range []string{"ann", "ann", "ann", "bob", "bob"} {
		get(handler, "192.0.2.1", "/?user="+user)
	}
	// Output:
	// 404 "user";r=1;t=60, "address";r=2;t=60
	// 404 "user";r=0;t=60, "address";r=1;t=60
	// 429 "user";r=0;t=60, "address";r=1
	//     try again in 60 s
	// 404 "user";r=1;t=60, "address";r=0;t=60
	// 429 "user";r=1, "address";r=0;t=60
	//     try again in 60 s
}

// The limit stands beside the route, as with Java's @RateLimit(period = 30, threshold = 2),
// and the keys are those of the Java services: limit:<user>:<uri>. A field of the hash
// rate:limit:config changes one while it runs.
func ExampleMiddleware_Handler() {
	rdb, stop := limittest.ConnectExample()
	defer stop()

	userOf := func(r *http.Request) string { return r.Header.Get("X-User") }
	client := rratelimiter.New(rdb)
	limited := func(threshold int64, period time.Duration, next http.Handler) http.Handler {
		log := slidinglog.New(client, slidinglog.Config{Limit: threshold, Window: period, Thresholds: "rate:limit:config"})
		return httplimit.New(log, httplimit.WithPrefix("limit:"), httplimit.WithKey(httplimit.User(userOf), httplimit.Path())).Handler(next)
	}

	mux := http.NewServeMux()
	mux.Handle("GET /hello", limited(2, 30*time.Second, http.NotFoundHandler()))
	mux.Handle("GET /other", limited(3, time.Minute, http.NotFoundHandler()))

	for range 3 {
		get(mux, "192.0.2.1", "/hello", "X-User", "ann")
	}
	get(mux, "192.0.2.1", "/other", "X-User", "ann")
	// Output:
	// 404 "default";r=1;t=30
	// 404 "default";r=0;t=30
	// 429 "default";r=0;t=30
	//     try again in 30 s
	// 404 "default";r=2;t=60
}

// Behind proxies: only what they have written into X-Forwarded-For is believed.
func ExampleClientIP() {
	byClient := httplimit.ClientIP(httplimit.ClientIPConfig{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	handler := httplimit.New(httplimit.Local(1, time.Minute), httplimit.WithKey(byClient)).Handler(http.NotFoundHandler())

	get(handler, "10.0.0.1", "/", "X-Forwarded-For", "192.0.2.1")
	get(handler, "10.0.0.1", "/", "X-Forwarded-For", "203.0.113.9, 192.0.2.1, 10.0.0.2")
	get(handler, "192.0.2.2", "/", "X-Forwarded-For", "203.0.113.9")
	get(handler, "192.0.2.2", "/", "X-Forwarded-For", "203.0.113.10")
	// Output:
	// 404 "default";r=0;t=60
	// 429 "default";r=0;t=60
	//     try again in 60 s
	// 404 "default";r=0;t=60
	// 429 "default";r=0;t=60
	//     try again in 60 s
}

// One account has one limit, however its name is spelled: the key is the account's ID. An application without IDs can
// count by one form of all spellings, for example with the profile UsernameCaseMapped of golang.org/x/text/secure/precis.
func ExampleUser() {
	accounts := map[string]string{"ann@example.org": "17", "a.smith@example.org": "17"} // by name in lower case
	account := func(r *http.Request) string {
		return accounts[strings.ToLower(strings.TrimSpace(r.Header.Get("X-User")))]
	}
	handler := httplimit.New(httplimit.Local(3, time.Minute), httplimit.WithKey(httplimit.User(account))).Handler(http.NotFoundHandler())

	for _, name := range []string{"ann@example.org", " Ann@Example.org", "a.smith@example.org", "ANN@EXAMPLE.ORG"} {
		get(handler, "192.0.2.1", "/", "X-User", name)
	}
	// Output:
	// 404 "default";r=2;t=60
	// 404 "default";r=1;t=60
	// 404 "default";r=0;t=60
	// 429 "default";r=0;t=60
	//     try again in 60 s
}

// A client keeps to what its upstream allows, together with all programs that use the same
// Redis, and stops when the upstream says so: by Retry-After, or as this one, in a header of its own.
func ExampleNewTransport() {
	rdb, stop := limittest.ConnectExample()
	defer stop()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Backoff", "30s")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer upstream.Close()

	rateLimiter := rratelimiter.New(rdb)
	defer func() { _ = rateLimiter.Close(context.Background()) }()
	perHost := rateLimiter.Keyed("", rratelimiter.PerSecond(50))
	ownHeader := httplimit.WithPauseOn(func(resp *http.Response) time.Duration {
		pause, _ := time.ParseDuration(resp.Header.Get("X-Backoff"))
		return pause
	})
	transport := httplimit.NewTransport(nil, perHost, ownHeader)
	if err := transport.Err(); err != nil {
		fmt.Println(err) // an option is bad
	}
	client := &http.Client{Transport: transport, Timeout: 20 * time.Second}

	for range 2 {
		resp, err := client.Get(upstream.URL)
		var notSent *httplimit.NotSentError
		switch {
		case errors.As(err, &notSent):
			fmt.Println("not sent: paused", notSent.Paused, "for", notSent.RetryAfter.Round(time.Minute/2))
		case err != nil:
			fmt.Println(err)
		default:
			_ = resp.Body.Close()
			fmt.Println(resp.Status)
		}
	}
	// Output:
	// 429 Too Many Requests
	// not sent: paused true for 30s
}

// Each request may cost 600 tokens, and is settled by what the model says it has cost: 100, and
// then 1200, of which the next ones pay the rest.
func ExampleSettle() {
	rdb, stop := limittest.ConnectExample()
	defer stop()

	tokens := rratelimiter.New(rdb).Keyed("tokens:", rratelimiter.PerHour(1000))
	estimate := func(*http.Request) (int64, error) { return 600, nil }
	answers := []int64{100, 1200}
	handler := httplimit.New(httplimit.Policy{Limiter: tokens, Settle: true}, httplimit.WithCost(estimate)).Handler(
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			used := answers[0]
			answers = answers[1:]
			if err := httplimit.Settle(r.Context(), used); err != nil {
				fmt.Println(err)
			}
		}))

	for range 3 {
		get(handler, "192.0.2.1", "/")
	}
	// Output:
	// 200 "default";r=400;t=3600
	// 200 "default";r=300;t=3600
	// 429 "default";r=0;t=3600
	//     try again in 3600 s
}

// While Redis is down, each of two such programs grants half of the limit.
func ExampleWithFailure() {
	rdb, stop := limittest.ConnectExample()
	limiter := slidinglog.New(rratelimiter.New(rdb), slidinglog.Config{Limit: 4, Window: time.Minute})
	handler := httplimit.New(limiter,
		httplimit.WithFailure(limit.FailLocal(0.5)),
		httplimit.WithErrorHandler(func(*http.Request, error) {}), // for an alert
	).Handler(http.NotFoundHandler())

	get(handler, "192.0.2.1", "/")
	stop() // Redis goes down
	for range 3 {
		get(handler, "192.0.2.1", "/")
	}
	// Output:
	// 404 "default";r=3;t=60
	// 404 "default";r=1;t=60
	// 404 "default";r=0;t=60
	// 429 "default";r=0;t=60
	//     try again in 60 s
}

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
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
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
