package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/metric"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/admin"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/otellimit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// What the names of all keys in Redis begin with.
const (
	userPrefix   = "limit:"            // limit:<user>:<uri>: a sliding log
	thresholds   = "rate:limit:config" // the hash of thresholds of single keys
	clientPrefix = "gateway:"          // gateway:client:<address>, gateway:admin:<address>, gateway:tokens:<user>: RateLimiters
	shopLimiter  = "gateway:shop"      // a RateLimiter
)

type config struct {
	rdb           *redis.Client
	greeter, shop *url.URL
	chat          *url.URL          // a language model
	transport     http.RoundTripper // to the services
	token         string
	perClient     int64         // requests a minute
	shopRate      int64         // requests a second
	tokens        int64         // of the model, a minute
	timeout       time.Duration // of what is asked of Redis, and of waiting for the shop
	failure       limit.Failure // what answers while Redis does not
	meters        metric.MeterProvider
	metrics       http.Handler
	log           *slog.Logger
}

// gateway is the handler of all incoming requests.
type gateway struct {
	config
	http.Handler

	client *rratelimiter.Client
	logs   map[string]admin.SlidingLog
}

func newGateway(cfg config) *gateway {
	g := &gateway{config: cfg, logs: make(map[string]admin.SlidingLog)}
	g.client = rratelimiter.New(cfg.rdb,
		rratelimiter.WithFailure(cfg.failure), rratelimiter.WithObserver(g.observer()), rratelimiter.WithLogger(cfg.log))

	routes := http.NewServeMux()
	routes.Handle("GET /hello", g.limited("hello", httplimit.Rate{Period: 30 * time.Second, Threshold: 2})(g.proxy(cfg.greeter)))
	routes.Handle("/orders", g.limited("orders", httplimit.Rate{})(g.paced(g.proxy(cfg.shop)))) // 3 a minute
	routes.Handle("POST /chat", g.model())

	// A user is who the client says it is, and can be another one each time. Its
	// address it can't choose.
	perClient := func(name string) func(http.Handler) http.Handler {
		return httplimit.New(
			g.client.Keyed(clientPrefix, rratelimiter.PerMinute(cfg.perClient)),
			httplimit.WithName(name),
			httplimit.WithPrefix(name+":"),
			httplimit.WithTimeout(cfg.timeout),
			httplimit.WithErrorHandler(g.failed),
		)
	}

	all := http.NewServeMux()
	if cfg.metrics != nil {
		all.Handle("GET /metrics", cfg.metrics)
	}
	all.Handle("/", perClient("client")(routes))
	// Guesses of the token are limited too. They are counted apart, for a client who is
	// refused above to be let in again from the same address.
	all.Handle("/admin/", perClient("admin")(http.StripPrefix("/admin", admin.New(admin.Config{
		Authorize:   g.authorize,
		Client:      g.client,
		Prefixes:    []string{clientPrefix},
		SlidingLogs: g.logs,
		Logger:      cfg.log,
		Timeout:     cfg.timeout,
	}))))
	g.Handler = all
	return g
}

// limited returns middleware for one route. Its keys are those of the services
// in Java, limit:<user>:<uri>, and so is the hash of thresholds: all share the
// limits.
func (g *gateway) limited(name string, rate httplimit.Rate) func(http.Handler) http.Handler {
	declare := httplimit.Declare(
		func(r httplimit.Rate) limit.Limiter {
			log := slidinglog.New(g.rdb, slidinglog.Config{Limit: r.Threshold, Window: r.Period, Thresholds: thresholds},
				limit.WithName(name), limit.WithFailure(g.failure), limit.WithObserver(g.observer()), limit.WithLogger(g.log))
			g.logs[name] = log
			return log
		},
		httplimit.WithName("user"),
		httplimit.WithPrefix(userPrefix),
		httplimit.WithKey(httplimit.User(user), httplimit.Path()),
		httplimit.WithTimeout(g.timeout),
		httplimit.WithErrorHandler(g.failed),
	)
	return declare(rate)
}

// observer has the metrics of one limiter, or of all of a Client's.
func (g *gateway) observer() limit.Observer {
	return otellimit.New(otellimit.WithMeterProvider(g.meters))
}

// paced returns middleware that limits the requests a second that a service gets from all
// callers together. Requests above that wait, for the timeout at most.
func (g *gateway) paced(next http.Handler) http.Handler {
	shop := g.client.RateLimiter(shopLimiter,
		rratelimiter.WithDefault(rratelimiter.PerSecond(g.shopRate)), rratelimiter.WithLease(rratelimiter.Lease{Permits: 100, Life: 200 * time.Millisecond}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		granted, err := shop.TryAcquire(r.Context(), 1, g.timeout)
		if err != nil {
			g.failed(r, err)
		}
		if !granted {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many are waiting", http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// user says whose request it is. If it matters, take the name from what has
// authenticated the request.
func user(r *http.Request) string {
	if name := r.Header.Get("X-User"); name != "" {
		return name
	}
	return "nobody"
}

func (g *gateway) proxy(service *url.URL) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(service)
			r.SetXForwarded()
		},
		Transport: g.transport,
		ErrorLog:  slog.NewLogLogger(g.log.Handler(), slog.LevelWarn),
	}
}

// authorize lets the holder of the token do everything.
func (g *gateway) authorize(r *http.Request, _ admin.Access) (string, error) {
	given, want := sha256.Sum256([]byte(r.Header.Get("Authorization"))), sha256.Sum256([]byte("Bearer "+g.token))
	if subtle.ConstantTimeCompare(given[:], want[:]) != 1 {
		return "", admin.ErrUnauthenticated
	}
	return "admin", nil
}

// failed is called when a limit can't be decided. The request is answered with 503.
func (g *gateway) failed(r *http.Request, err error) {
	g.log.ErrorContext(r.Context(), "limit not decided", "path", r.URL.Path, "error", err)
}

func (g *gateway) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := g.client.Close(ctx); err != nil {
		g.log.Warn("closing", "error", err)
	}
}
