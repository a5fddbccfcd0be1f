package concurrency_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

func TestWithRateSetsTheRateAndKeepsPermitsInUse(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		client := limitertest.NewClient(t, rdb)
		l := client.RateLimiter(redistest.Name(t))
		limitertest.MustTrySetRate(t, l, limitertest.Every(10, time.Hour))
		limitertest.MustAcquire(t, l, 4)

		want := rratelimiter.Config{Rate: 6, Interval: 2 * time.Hour, KeepAlive: 3 * time.Hour}
		coded := client.RateLimiter(l.Name(), rratelimiter.WithRate(want))
		d := mustTake(t, coded, 1)
		assert.True(t, d.Granted)
		assert.EqualValues(t, 6, d.Limit)
		assert.EqualValues(t, 1, d.Remaining)
		assert.Equal(t, want, configOf(t, l))
	})
}

func TestWithRateByEachCall(t *testing.T) {
	t.Parallel()
	own := limitertest.Every(5, time.Hour)
	calls := map[string]change{
		"TryAcquireAll of one": func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return limitertest.Second(c.TryAcquireAll(ctx, 1, 0, l))
		},
		"TryAcquireAll of two": func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			other := c.RateLimiter("{"+l.Name()+"}other", rratelimiter.WithRate(limitertest.Every(2, time.Hour)))
			return limitertest.Second(c.TryAcquireAll(ctx, 1, time.Second, l, other))
		},
	}
	for name := range acquires {
		calls[name] = func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return limitertest.Operations[name](ctx, l)
		}
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			virtual(t, map[string]rratelimiter.Config{
				"no rate before": {}, "another": limitertest.Every(50, time.Hour), "its own": own,
			}, func(t *testing.T, rdb *redis.Client, before rratelimiter.Config) {
				client := limitertest.NewClient(t, rdb)
				plain := client.RateLimiter("a")
				if before.Rate > 0 {
					limitertest.MustTrySetRate(t, plain, before)
				}
				l := client.RateLimiter("a", rratelimiter.WithRate(own))
				require.NoError(t, call(t.Context(), client, l))
				assert.Equal(t, own, configOf(t, plain))
				assert.EqualValues(t, 4, limitertest.Available(t, plain))

				require.NoError(t, limitertest.Second(plain.Delete(t.Context())))
				require.NoError(t, call(t.Context(), client, l), "a limiter that has gone")
				assert.Equal(t, own, configOf(t, plain))
			})
		})
	}
}

func TestWithRateComparesOnce(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		client := limitertest.NewClient(t, rdb)
		plain := client.RateLimiter("a")
		limitertest.MustTrySetRate(t, plain, limitertest.Every(50, time.Hour))
		scripts := map[string]*int{}
		for _, s := range []*lua.Script{lua.Config, lua.SetRate, lua.TrySetRate} {
			calls := 0
			scripts[s.Name] = &calls
			rdb.AddHook(limitertest.BeforeScript{Script: s, Do: func() { calls++ }})
		}
		l := client.RateLimiter("a", rratelimiter.WithRate(limitertest.Every(20, time.Hour)))
		var callers sync.WaitGroup
		for range 10 {
			callers.Go(func() { assert.True(t, limitertest.Try(t, l, 1)) })
		}
		callers.Wait()
		require.NoError(t, plain.SetRate(t.Context(), limitertest.Every(30, time.Hour), rratelimiter.KeepState()))
		*scripts[lua.SetRate.Name]-- // it goes by EVALSHA too
		limitertest.MustAcquire(t, l, 1)
		assert.Equal(t, 1, *scripts[lua.Config.Name])
		assert.Equal(t, 1, *scripts[lua.SetRate.Name])
		assert.Equal(t, 0, *scripts[lua.TrySetRate.Name])
		assert.EqualValues(t, 30, configOf(t, plain).Rate, "the rate that was set last holds")
	})
}

var withRateTests = tests[*redis.Client]{
	"WithRate tells of programs that disagree": func(t *testing.T, rdb *redis.Client) {
		told, log := &limitertest.Recorder{}, &bytes.Buffer{}
		client := limitertest.NewClient(t, rdb, rratelimiter.WithObserver(told), logTo(log))
		other := limitertest.NewClient(t, rdb)
		ours, theirs := limitertest.Every(20, time.Minute), rratelimiter.Config{Rate: 30, Interval: time.Hour, KeepAlive: 2 * time.Hour}
		a := client.RateLimiter("a", rratelimiter.WithRate(ours))
		b := other.RateLimiter("a", rratelimiter.WithRate(theirs))
		require.NoError(t, b.Acquire(t.Context(), 1))
		for range 3 {
			mustTake(t, a, 1)
		}
		synctest.Wait()
		replaced := limit.Event{
			Kind: limit.RateReplaced, Limiter: "a",
			Found: limit.Rate{Permits: 30, Interval: time.Hour, KeepAlive: 2 * time.Hour},
			Want:  limit.Rate{Permits: 20, Interval: time.Minute},
		}
		assert.Equal(t, []limit.Event{replaced}, told.Events())
		assert.Contains(t, log.String(), `msg="rratelimiter: rate replaced" limiter=a found="30 in 1h0m0s, kept alive for 2h0m0s" want="20 in 1m0s"`)

		require.NoError(t, other.RateLimiter("a").SetRate(t.Context(), theirs))
		for range 3 {
			mustTake(t, a, 1)
		}
		synctest.Wait()
		differs := limit.Event{
			Kind: limit.RateDiffers, Limiter: "a",
			Found: limit.Rate{Permits: 30, Interval: time.Hour}, Want: limit.Rate{Permits: 20, Interval: time.Minute},
		}
		assert.Equal(t, []limit.Event{replaced, differs}, told.Events(), "once")
		assert.Equal(t, theirs, configOf(t, b), "they do not fight")
		assert.Contains(t, log.String(), `rate differs`)
	},
	"WithRate keeps to the callers time": func(t *testing.T, rdb *redis.Client) {
		client := limitertest.NewClient(t, rdb)
		rdb.AddHook(limitertest.Slow(500 * ms))
		l := client.RateLimiter("a", rratelimiter.WithRate(limitertest.Every(1, time.Hour)))
		start := time.Now()
		_, err := l.TryAcquire(t.Context(), 1, 100*ms)
		require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
		assert.Equal(t, 200*ms, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
		defer cancel()
		require.ErrorIs(t, l.Acquire(ctx, 1), context.DeadlineExceeded)
		time.Sleep(time.Minute)
		limitertest.MustAcquire(t, l, 1)
	},
}

func TestWithRate(t *testing.T) {
	t.Parallel()
	onMini(t, withRateTests)
}

func TestWithRateTriesAgainAfterAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb)
		limitertest.MustTrySetRate(t, client.RateLimiter("a"), limitertest.Every(50, time.Hour))
		l := client.RateLimiter("a", rratelimiter.WithRate(limitertest.Every(20, time.Hour)))
		m.SetError("LOADING Redis is loading the dataset in memory")
		_, err := l.TryAcquire(t.Context(), 1, 0)
		require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
		require.ErrorContains(t, err, "WithRate")
		require.NotErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
		m.SetError("")
		limitertest.MustAcquire(t, l, 1)
		assert.EqualValues(t, 20, configOf(t, l).Rate)
	})
}

func TestWithRateGoesByThePolicyForOutages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb, rratelimiter.WithFailure(limit.FailLocal(0.5)))
		l := client.RateLimiter("a", rratelimiter.WithRate(limitertest.Every(20, time.Hour)))
		m.SetError("LOADING Redis is loading the dataset in memory")
		assert.EqualValues(t, 10, mustTake(t, l, 1).Limit)
		m.SetError("")
	})
}

// Limiters of keys of one Client that may share keys, or that give the same keys two
// rates, are told of in the log, once; those that share a rate on purpose are not.
func TestPrefixesOfOneClient(t *testing.T) {
	t.Parallel()
	minute := rratelimiter.PerMinute
	keyed := func(prefix string, rate int64) func(t *testing.T, c *rratelimiter.Client) {
		return func(t *testing.T, c *rratelimiter.Client) {
			limittest.Take(t, c.Keyed(prefix, minute(rate)), "x", 1)
		}
	}
	handler := func(rate int64, opts ...httplimit.Option) func(t *testing.T, c *rratelimiter.Client) {
		return func(t *testing.T, c *rratelimiter.Client) {
			h := httplimit.New(c.Keyed("", minute(rate)), opts...)(http.NotFoundHandler())
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		}
	}
	api, apiIP := httplimit.WithPrefix("api:"), httplimit.WithPrefix("api:ip:")
	type row struct {
		first, second func(t *testing.T, c *rratelimiter.Client)
		kind          limit.EventKind
		says          string
	}
	bubbles(t, map[string]row{
		"another rate":             {keyed("api", 10), keyed("api", 5), limit.RateDiffers, `limiter=api found="10 in 1m0s`},
		"a prefix that goes on":    {keyed("api", 5), keyed("api2", 5), limit.PrefixesMeet, `neither continues`},
		"the longer one first":     {keyed("api2", 5), keyed("api", 5), limit.PrefixesMeet, `neither continues`},
		"the same twice":           {keyed("api", 5), keyed("api", 5), "", ""},
		"prefixes that part":       {keyed("api:", 5), keyed("api2:", 7), "", ""},
		"middleware, another rate": {handler(10), handler(5), limit.RateDiffers, `limiter=http: found="10 in 1m0s`},
		"middleware, the same":     {handler(5), handler(5), "", ""},
		"middleware, apart":        {handler(10, api), handler(5), "", ""},
		"middleware, continued":    {handler(10, api), handler(5, apiIP), limit.PrefixesMeet, `api:ip:`},
		"middleware, hash tags":    {handler(10, api, httplimit.WithHashTag()), handler(5, apiIP, httplimit.WithHashTag()), "", ""},
		"middleware, and without":  {handler(10, api), keyed("", 10), limit.PrefixesMeet, `neither continues`},
	}, func(t *testing.T, row row) {
		rdb, _ := redistest.Mini(t)
		told, log := &limitertest.Recorder{}, &bytes.Buffer{}
		client := limitertest.NewClient(t, rdb, rratelimiter.WithObserver(told), logTo(log))
		for range 3 { // as where they are made for each request
			row.first(t, client)
			row.second(t, client)
		}
		synctest.Wait()
		var kinds []limit.EventKind
		for _, e := range told.Events() {
			kinds = append(kinds, e.Kind)
		}
		if row.kind == "" {
			assert.Empty(t, kinds)
			assert.Empty(t, log.String())
			return
		}
		assert.Contains(t, kinds, row.kind)
		assert.Contains(t, log.String(), row.says)
		assert.LessOrEqual(t, strings.Count(log.String(), "\n"), 2)
	})
}

// Of two rates under one prefix the first that a key was asked for by stays.
func TestTwoRatesOfOnePrefix(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	client := limitertest.NewClient(t, rdb)
	first, second := client.Keyed("api", rratelimiter.PerMinute(10)), client.Keyed("api", rratelimiter.PerMinute(5))
	for range 3 {
		for _, k := range []*rratelimiter.KeyedLimiter{first, second} {
			assert.EqualValues(t, 10, limittest.Take(t, k, "ann", 1).Limit)
		}
	}
}

// Without a log of its own the Client tells slog's.
func TestPrefixesWithoutALogger(t *testing.T) { //nolint:paralleltest // the log is the process's
	log := &bytes.Buffer{}
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	defer slog.SetDefault(before)
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb)
		for _, rate := range []int64{10, 5} {
			limittest.Take(t, client.Keyed("api", rratelimiter.PerMinute(rate)), "ann", 1)
		}
		synctest.Wait()
		assert.Contains(t, log.String(), `rate differs" limiter=api`)
	})
}
