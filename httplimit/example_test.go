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

// perMinute returns a limiter of so many permits a minute.
func perMinute(n int64) (limiter limit.Limiter, stop func()) {
	rdb, stop := limittest.ConnectExample()
	return slidinglog.New(rratelimiter.New(rdb), slidinglog.Config{Limit: n, Window: time.Minute}), stop
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

// A CORS middleware around the limiter answers preflights itself, and lets scripts of other origins read
// what a 429 says. If the handler answers them, IsPreflight keeps them from being counted.
func ExampleIsPreflight() {
	cors := func(next http.Handler) http.Handler { // in place of one from a library
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Access-Control-Allow-Origin", "https://shop.example")
			w.Header().Set("Access-Control-Expose-Headers", "Retry-After, RateLimit, RateLimit-Policy")
			next.ServeHTTP(w, r)
		})
	}
	handler := cors(httplimit.New(httplimit.Local(1, time.Minute), httplimit.WithSkip(httplimit.IsPreflight)).Handler(http.NotFoundHandler()))

	for _, method := range []string{http.MethodOptions, http.MethodPut, http.MethodOptions, http.MethodPut} {
		r := httptest.NewRequest(method, "/", http.NoBody)
		r.Header.Set("Origin", "https://shop.example")
		if method == http.MethodOptions {
			r.Header.Set("Access-Control-Request-Method", http.MethodPut)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(method, w.Code)
	}
	// Output:
	// OPTIONS 404
	// PUT 404
	// OPTIONS 404
	// PUT 429
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

// A key function of the application's own: those who have signed in are counted
// by name, all others by address. The words before keep a user named 192.0.2.1
// apart from that address.
func ExampleWithKey() {
	byAddress := httplimit.ClientIP(httplimit.ClientIPConfig{})
	caller := func(r *http.Request) (string, error) {
		if user := r.Header.Get("X-User"); user != "" {
			return "user/" + user, nil
		}
		address, err := byAddress(r)
		return "ip/" + address, err
	}
	handler := httplimit.New(httplimit.Local(1, time.Minute), httplimit.WithKey(caller)).Handler(http.NotFoundHandler())

	get(handler, "192.0.2.1", "/")
	get(handler, "192.0.2.1", "/", "X-User", "ann")
	get(handler, "192.0.2.1", "/", "X-User", "192.0.2.1")
	// Output:
	// 404 "default";r=0;t=60
	// 404 "default";r=0;t=60
	// 404 "default";r=0;t=60
}

// A client keeps to what its upstream allows, together with all programs that use the same
// Redis, and stops when the upstream says so.
func ExampleNewTransport() {
	rdb, stop := limittest.ConnectExample()
	defer stop()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer upstream.Close()

	rateLimiter := rratelimiter.New(rdb)
	defer func() { _ = rateLimiter.Close(context.Background()) }()
	perHost := rateLimiter.Keyed("", rratelimiter.PerSecond(50))
	if err := httplimit.NewTransport(nil, perHost).Err(); err != nil {
		fmt.Println(err) // an option is bad
	}
	client := &http.Client{Transport: httplimit.NewTransport(nil, perHost), Timeout: 2 * time.Second}

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

// What one program hears stops the calls of all, also of one that is started later. This upstream says in a header of its
// own when to come again.
func ExampleWithSharedPause() {
	rdb, stop := limittest.ConnectExample()
	defer stop()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Backoff", "30s")
	}))
	defer upstream.Close()

	ownHeader := httplimit.WithPauseOn(func(resp *http.Response) time.Duration {
		pause, _ := time.ParseDuration(resp.Header.Get("X-Backoff"))
		return pause
	})
	for _, program := range []string{"hears:", "restarted:"} {
		client := rratelimiter.New(rdb)
		transport := httplimit.NewTransport(nil, client.Keyed("", rratelimiter.PerSecond(50)),
			httplimit.WithKey(func(*http.Request) (string, error) { return "partner", nil }),
			ownHeader, httplimit.WithSharedPause(client))
		resp, err := (&http.Client{Transport: transport, Timeout: 2 * time.Second}).Get(upstream.URL)
		if notSent, ok := errors.AsType[*httplimit.NotSentError](err); ok {
			fmt.Println(program, "not sent: paused", notSent.Paused, "for", notSent.RetryAfter.Round(time.Minute/2))
		} else if err == nil {
			_ = resp.Body.Close()
			fmt.Println(program, resp.Status)
		}
		_ = client.Close(context.Background())
	}
	fmt.Println(rdb.PTTL(context.Background(), "{upstream:partner}:pause").Val().Round(time.Minute / 2))
	// Output:
	// hears: 200 OK
	// restarted: not sent: paused true for 30s
	// 30s
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

// A program that stops as it starts, rather than with its first request.
func ExampleMiddleware_Err() {
	limits := httplimit.New(httplimit.Local(100, time.Minute), httplimit.WithPrefix(""))
	if err := limits.Err(); err != nil {
		fmt.Println(err)
		return
	}
	http.Handle("/", limits.Handler(http.NotFoundHandler()))
	// Output: httplimit: invalid configuration: WithPrefix: the prefix is empty
}

// While Redis is down, this process limits by itself, as much as it has seen.
func ExampleWithFallback() {
	limiter, stop := perMinute(2)
	stop() // Redis goes down
	handler := httplimit.New(limiter,
		httplimit.WithFallback(httplimit.Local(2, time.Minute)),
		httplimit.WithErrorHandler(func(_ *http.Request, err error) {
			fmt.Println("alert:", errors.Is(err, limit.ErrUnavailable))
		}),
		httplimit.WithTimeout(10*time.Millisecond),
	).Handler(http.NotFoundHandler())

	for range 3 {
		get(handler, "192.0.2.1", "/")
	}
	// Output:
	// alert: true
	// 404 "default";r=1;t=60
	// alert: true
	// 404 "default";r=0;t=60
	// alert: true
	// 429 "default";r=0;t=60
	//     try again in 60 s
}

// While Redis is down, each of two such programs grants half of the limit.
func ExampleWithFailure() {
	limiter, stop := perMinute(4)
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

// refusals prints what a limit would have refused.
type refusals struct{ limit.NoObserver }

func (refusals) Decided(_ context.Context, d limit.Decided) {
	if d.Outcome == limit.Refused {
		fmt.Println("the policy", d.Limiter, "would refuse this:")
	}
}

// What would a limit of two a minute do? No client is refused, or sees the limit.
func ExampleWithShadow() {
	limiter, stop := perMinute(2)
	defer stop()
	handler := httplimit.New(httplimit.Policy{Name: "minute", Limiter: limiter},
		httplimit.WithShadow(), httplimit.WithObserver(refusals{})).Handler(http.NotFoundHandler())

	for range 3 {
		get(handler, "192.0.2.1", "/")
	}
	// Output:
	// 404
	// 404
	// the policy minute would refuse this:
	// 404
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

// Users have two requests a day, or five if they pay. Windows of all plans count at the same keys, so
// what ann has used stays counted as she changes her plan.
func ExamplePolicy_plan() {
	rdb, stop := limittest.ConnectExample()
	defer stop()

	day := fixedwindow.Daily(time.UTC)
	free := fixedwindow.New(rratelimiter.New(rdb), fixedwindow.Config{Limit: 2, Calendar: day})
	paid := map[string]limit.Limiter{"paid": fixedwindow.New(rratelimiter.New(rdb), fixedwindow.Config{Limit: 5, Calendar: day})}
	perUser := httplimit.Policy{Limiter: free, Plan: func(r *http.Request) limit.Limiter { return paid[r.Header.Get("Plan")] }}
	handler := httplimit.New(perUser, httplimit.WithKey(httplimit.Header("User"))).Handler(http.NotFoundHandler())

	get(handler, "192.0.2.1", "/", "User", "ann")
	get(handler, "192.0.2.1", "/", "User", "ann", "Plan", "unknown")
	get(handler, "192.0.2.1", "/", "User", "ann", "Plan", "unknown")
	get(handler, "192.0.2.1", "/", "User", "ann", "Plan", "paid")
	// Output:
	// 404 "default";r=1;t=43200
	// 404 "default";r=0;t=43200
	// 429 "default";r=0;t=43200
	//     try again in 43200 s
	// 404 "default";r=2;t=43200
}

// A limit of a day is tried out beside that of a minute: it refuses nothing, and an observer sees what it would refuse.
func ExamplePolicy_shadow() {
	handler := httplimit.New(httplimit.Local(100, time.Minute),
		httplimit.WithObserver(refusals{}),
		httplimit.WithPolicy(httplimit.Policy{Name: "day", Limiter: httplimit.Local(1, 24*time.Hour), Shadow: true})).Handler(hello)
	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody)) // from 192.0.2.1
		fmt.Println(w.Code)
	}
	// Output:
	// 200
	// the policy day would refuse this:
	// 200
}
