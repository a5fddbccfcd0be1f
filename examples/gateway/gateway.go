package main

import (
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/metric"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/otellimit"
)

// plan is what a user may use.
type plan struct{ requestsMinute, requestsDay, tokensMinute, tokensDay int64 }

// plans are what users can have. Take yours from a cache of your database: it is asked several times for each request.
var plans = map[string]plan{
	"free": {requestsMinute: 5, requestsDay: 100, tokensMinute: 1_000, tokensDay: 2_000},
	"paid": {requestsMinute: 100, requestsDay: 10_000, tokensMinute: 20_000, tokensDay: 1_000_000},
}

type config struct {
	rdb       *redis.Client
	model     *url.URL
	transport http.RoundTripper        // to the model
	planOf    func(user string) string // the name of a user's plan
	timeout   time.Duration            // of what is asked of Redis
	failure   limit.Failure            // what answers while Redis does not
	meters    metric.MeterProvider
	log       *slog.Logger
}

// gateway passes requests on to a language model, and limits the requests and the tokens of each user.
type gateway struct {
	config
	http.Handler

	client *rratelimiter.Client
}

func newGateway(cfg config) (*gateway, error) {
	g := &gateway{config: cfg}
	g.client = rratelimiter.New(cfg.rdb, rratelimiter.WithFailure(cfg.failure), rratelimiter.WithLogger(cfg.log),
		rratelimiter.WithObserver(otellimit.New(otellimit.WithMeterProvider(cfg.meters))))
	limits := g.limits()
	if err := limits.Err(); err != nil {
		return nil, err
	}
	g.Handler = limits.Handler(g.proxy())
	return g, nil
}

// limits returns all limits of a request. Their keys are gateway:requests-day:{ann} and the like: they have the user as
// hash tag, so that one script call decides. A request is charged to all or none.
func (g *gateway) limits() *httplimit.Middleware {
	return httplimit.New(
		httplimit.Policy{
			Name:    "requests-minute",
			Limiter: g.keyed("requests-minute", func(p plan) rratelimiter.Config { return rratelimiter.PerMinute(p.requestsMinute) }),
		},
		httplimit.WithPrefix("gateway:"),
		httplimit.WithKey(httplimit.User(user)),
		httplimit.WithHashTag(),
		httplimit.WithPolicy(httplimit.Policy{
			Name:    "requests-day",
			Limiter: g.keyed("requests-day", func(p plan) rratelimiter.Config { return rratelimiter.PerDay(p.requestsDay) }),
		}),
		httplimit.WithPolicy(httplimit.Policy{
			Name:    "tokens-minute",
			Limiter: g.keyed("tokens-minute", func(p plan) rratelimiter.Config { return rratelimiter.PerMinute(p.tokensMinute) }),
			Cost:    estimate,
			Settle:  true,
		}),
		httplimit.WithPolicy(httplimit.Policy{
			Name:    "tokens-day",
			Limiter: g.keyed("tokens-day", func(p plan) rratelimiter.Config { return rratelimiter.PerDay(p.tokensDay) }),
			Cost:    estimate,
			Settle:  true,
			Hold:    longestAnswer,
		}),
		httplimit.WithTimeout(g.timeout),
		httplimit.WithErrorHandler(func(r *http.Request, err error) {
			g.log.ErrorContext(r.Context(), "limits not decided", "error", err)
		}),
	)
}

// keyed returns a limiter whose rate is that of the user's plan.
func (g *gateway) keyed(name string, rate func(plan) rratelimiter.Config) limit.Limiter {
	return g.client.KeyedFunc("", func(user string) rratelimiter.Config {
		p, known := plans[g.planOf(user)]
		if !known {
			p = plans["free"]
		}
		return rate(p)
	}, rratelimiter.WithName(name))
}

// user says whose request it is. Take the name from what has authenticated the request.
func user(r *http.Request) string {
	if name := r.Header.Get("X-User"); name != "" {
		return name
	}
	return "nobody"
}

// longestAnswer is how long an answer may take. The estimate of a gateway that is killed comes back then, not after a day.
const longestAnswer = 10 * time.Minute

// usualAnswer is how many tokens an answer is taken to have until it is there.
const usualAnswer = 100

// estimate returns about how many tokens a request costs. It reads no body: a token is some four letters.
func estimate(r *http.Request) (int64, error) { return usualAnswer + max(0, r.ContentLength)/4, nil }

func (g *gateway) proxy() http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(g.model)
			r.SetXForwarded()
			r.Out.Header.Del("Accept-Encoding") // the usage is read from the answer
		},
		Transport: settling{g},
		ModifyResponse: func(resp *http.Response) error {
			for _, d := range httplimit.Decisions(resp.Request.Context()) {
				resp.Header.Set("X-Remaining-"+d.Name, strconv.FormatInt(d.Remaining, 10))
			}
			return nil
		},
		ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelWarn),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The model may answer before it has the whole request. Without this the server closes the request's
		// body then, and the connection to the model breaks.
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(w, r)
	})
}
