package peer

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-chi/httprate"
	httprateredis "github.com/go-chi/httprate-redis"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	redisstore "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/rratelimiter/rratelimiter/benchmarks/load"
)

// casAttempts is how often throttled tries to write what others write at the
// same time. Its own 10 give an error to most callers of a hot limiter.
const casAttempts = 10_000

// RedisRate is the name of the library whose users are nearest to ours, in its
// two ways of asking.
const (
	RedisRate         = "redis_rate"
	RedisRatePipeline = RedisRate + ", AutoPipeline"
)

var libraries = []Kind{
	{
		Name:     RedisRate,
		Aim:      true,
		Setup:    "v10 `Allow`, the rate and a burst of as much",
		Commands: map[string]float64{"evalsha": 0, "eval": 0},
		Open: open(func(_ context.Context, rdb *redis.Client, names []string, rule Rule) (load.Take, error) {
			return takeRedisRate(redis_rate.NewLimiter(rdb), names, rule), nil
		}),
	},
	{
		Name:     RedisRatePipeline,
		Aim:      true,
		Setup:    "the same on go-redis' `AutoPipeline()`, which sends the commands of many callers together",
		Commands: map[string]float64{"evalsha": 0, "eval": 0},
		Open:     openAutoPipeline,
	},
	{
		Name:     "ulule/limiter",
		Setup:    "v3 `Get` on its Redis store",
		Commands: map[string]float64{"evalsha": 0},
		Open: open(func(_ context.Context, rdb *redis.Client, names []string, rule Rule) (load.Take, error) {
			store, err := redisstore.NewStore(rdb)
			if err != nil {
				return nil, err
			}
			l := limiter.New(store, limiter.Rate{Period: rule.Interval, Limit: rule.Limit})
			return func(ctx context.Context, i int) (bool, error) {
				c, err := l.Get(ctx, names[i])
				return !c.Reached, err
			}, nil
		}),
	},
	{
		Name: "throttled",
		Setup: "v2 `RateLimitCtx` on its go-redis store, the rate and a burst of as much; with as many attempts as a " +
			"decision takes, where by default callers of a hot limiter get errors",
		// A caller of a hot limiter may be outrun for minutes.
		Patience: 200 * time.Millisecond,
		// The compare-and-swap reads what the client has read.
		Commands: map[string]float64{"time": 0, "get": 1, "eval": 0, "setnx": 0, "expire": 0},
		Open: open(func(_ context.Context, rdb *redis.Client, names []string, rule Rule) (load.Take, error) {
			store, err := goredisstore.NewCtx(rdb, "throttled:")
			if err != nil {
				return nil, err
			}
			quota := throttled.RateQuota{
				MaxRate:  throttled.PerDuration(int(rule.Limit), rule.Interval),
				MaxBurst: int(rule.Limit) - 1,
			}
			l, err := throttled.NewGCRARateLimiterCtx(store, quota)
			if err != nil {
				return nil, err
			}
			l.SetMaxCASAttemptsLimit(casAttempts)
			return func(ctx context.Context, i int) (bool, error) {
				limited, _, err := l.RateLimitCtx(ctx, names[i], 1)
				return !limited, err
			}, nil
		}),
	},
	{
		Name:     "httprate-redis",
		Setup:    "0.6 `OnLimit`, as its middleware calls it; the fallback to memory is off",
		Commands: map[string]float64{"mget": 0, "multi": 0, "exec": 0},
		Open: open(func(_ context.Context, rdb *redis.Client, names []string, rule Rule) (load.Take, error) {
			return takeHTTPRate(rdb, names, rule), nil
		}),
	},
}

func takeRedisRate(l *redis_rate.Limiter, names []string, rule Rule) load.Take {
	limit := redis_rate.Limit{Rate: int(rule.Limit), Burst: int(rule.Limit), Period: rule.Interval}
	return func(ctx context.Context, i int) (bool, error) {
		r, err := l.Allow(ctx, names[i], limit)
		if err != nil {
			return false, err
		}
		return r.Allowed > 0, nil
	}
}

func openAutoPipeline(_ context.Context, addr string, connections int) (Peer, error) {
	rdb := NewClient(addr, connections)
	pipeline, err := rdb.AutoPipeline()
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	return &inGo{
		rdb:    rdb,
		closes: func() error { return errors.Join(pipeline.Close(), rdb.Close()) },
		make: func(_ context.Context, _ *redis.Client, names []string, rule Rule) (load.Take, error) {
			return takeRedisRate(redis_rate.NewLimiter(pipeline), names, rule), nil
		},
	}, nil
}

func takeHTTPRate(rdb *redis.Client, names []string, rule Rule) load.Take {
	l := httprate.NewRateLimiter(int(rule.Limit), rule.Interval,
		httprateredis.WithRedisLimitCounter(&httprateredis.Config{
			Client:           rdb,
			FallbackDisabled: true,
			FallbackTimeout:  time.Minute,
		}),
		httprate.WithErrorHandler(func(w http.ResponseWriter, _ *http.Request, err error) {
			if a, ok := w.(*answer); ok {
				a.err = err
			}
		}))
	request := new(http.Request)
	return func(ctx context.Context, i int) (bool, error) {
		w := &answer{header: http.Header{}}
		limited := l.OnLimit(w, request.WithContext(ctx), names[i])
		return !limited, w.err
	}
}

// answer is a ResponseWriter of which only the header is wanted.
type answer struct {
	header http.Header
	err    error
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(p []byte) (int, error) { return len(p), nil }
func (a *answer) WriteHeader(int)             {}
