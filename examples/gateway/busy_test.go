package main

import (
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

const (
	plenty      = 1_000_000
	shopLimiter = "gateway:shop"
)

// busy is a gateway, and beside it what else the dashboard shows: sliding logs that refuse, and a RateLimiter with
// leases that many wait for. Each client has a limit over all.
type busy struct {
	*gateway

	shopRate int64 // requests a second; others wait
}

// serveBusy serves one until the test ends.
func serveBusy(t *testing.T, redisURL string, shopRate int64, failure limit.Failure) *site {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	rdb, closeRedis, err := connect(t.Context(), redisURL)
	require.NoError(t, err)
	t.Cleanup(closeRedis)
	model, stopModel, err := start("127.0.0.1:0", chat(), log)
	require.NoError(t, err)
	t.Cleanup(stopModel)
	meters, metrics, stopMetrics, err := newMetrics()
	require.NoError(t, err)
	t.Cleanup(stopMetrics)
	g, err := newGateway(config{
		rdb: rdb, model: model, transport: http.DefaultTransport, timeout: 20 * time.Second, failure: failure, meters: meters, log: log,
		planOf: func(string) string { return "paid" },
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.client.Close(t.Context()) })
	b := &busy{g, shopRate}
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	routes := http.NewServeMux()
	routes.Handle("GET "+hello, b.limited("hello", 2, 30*time.Second)(ok))
	routes.Handle("POST "+orders, b.limited("orders", 3, time.Minute)(b.paced(ok)))
	routes.Handle("POST "+prompts, g)
	all := http.NewServeMux()
	all.Handle("GET /metrics", metrics)
	all.Handle("/", httplimit.New(
		httplimit.Policy{Name: "client", Limiter: g.client.Keyed("gateway:", rratelimiter.PerMinute(plenty))}, httplimit.WithPrefix("client:"), httplimit.WithTimeout(g.timeout)).Handler(routes))
	address, stop, err := start("127.0.0.1:0", all, log)
	require.NoError(t, err)
	t.Cleanup(stop)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	t.Cleanup(client.CloseIdleConnections)
	return &site{t: t, url: address.String(), logged: &redistest.Buffer{}, send: client.Do}
}

// limited returns middleware for one route, with the keys of services in Java.
func (b *busy) limited(name string, threshold int64, period time.Duration) func(http.Handler) http.Handler {
	log := slidinglog.New(b.client, slidinglog.Config{Limit: threshold, Window: period, Thresholds: "rate:limit:config"},
		rratelimiter.WithName(name))
	return httplimit.New(log,
		httplimit.WithPrefix("limit:"), httplimit.WithKey(httplimit.User(user), httplimit.Path()), httplimit.WithTimeout(b.timeout)).Handler
}

// paced returns middleware that limits the requests a second that a service gets from all callers together.
// Requests above that wait, for the timeout at most.
func (b *busy) paced(next http.Handler) http.Handler {
	shop := b.client.RateLimiter(shopLimiter,
		rratelimiter.WithDefault(rratelimiter.PerSecond(b.shopRate)), rratelimiter.WithLease(rratelimiter.Lease{Permits: 100, Life: 200 * time.Millisecond}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if granted, _ := shop.TryAcquire(r.Context(), 1, b.timeout); !granted {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many are waiting", http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
}
