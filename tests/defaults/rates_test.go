package defaults_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A taker takes a permit of the limiter "user:ann", whose rate is cfg by default.
type taker func(ctx context.Context, c *rratelimiter.Client, cfg rratelimiter.Config) (take func() (bool, error))

// takers are the ways in which a program takes permits of a limiter by default.
var takers = map[string]taker{
	"Keyed": func(ctx context.Context, c *rratelimiter.Client, cfg rratelimiter.Config) func() (bool, error) {
		users := c.Keyed("user:", cfg)
		return func() (bool, error) { return users.TryAcquire(ctx, "ann", 1, 0) }
	},
	"Keyed, figures": func(ctx context.Context, c *rratelimiter.Client, cfg rratelimiter.Config) func() (bool, error) {
		users := c.Keyed("user:", cfg)
		return func() (bool, error) {
			d, err := users.Take(ctx, "ann", 1)
			return d.Granted, err
		}
	},
	"WithDefault": func(ctx context.Context, c *rratelimiter.Client, cfg rratelimiter.Config) func() (bool, error) {
		l := limitertest.ByDefault(c, "user:ann", cfg)
		return func() (bool, error) { return l.TryAcquire(ctx, 1, 0) }
	},
	"TryAcquireAll": func(ctx context.Context, c *rratelimiter.Client, cfg rratelimiter.Config) func() (bool, error) {
		l, other := limitertest.ByDefault(c, "user:ann", cfg), limitertest.ByDefault(c, "{user:ann}other", limitertest.Every(1_000_000, time.Hour))
		return func() (bool, error) { return c.TryAcquireAll(ctx, 0, other.Claim(1), l.Claim(1)) }
	},
}

// grantsOf returns how many calls are granted of three at a time, every 59 seconds.
func grantsOf(times int, take func() bool) (granted int) {
	for range times {
		time.Sleep(59 * time.Second)
		for range 3 {
			if take() {
				granted++
			}
		}
	}
	return granted
}

func TestChangedDefaultReachesBusyKeys(t *testing.T) {
	t.Parallel()
	for _, beside := range []string{"4.7.0", "3.17.0", "3.12.0"} {
		for name, taker := range takers {
			if beside == "3.12.0" && name == "TryAcquireAll" {
				continue // is ErrUnsupported
			}
			t.Run(name+", "+beside, func(t *testing.T) {
				t.Parallel()
				limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) { changeDefault(t, taker, kind, beside) })
			})
		}
	}
}

func changeDefault(t *testing.T, taker taker, kind rratelimiter.RateType, beside string) {
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		newClient := func() *rratelimiter.Client {
			return limitertest.NewClient(t, rdb, rratelimiter.WithClientID("shop"), rratelimiter.WithRedissonVersion(beside))
		}
		by := func(client *rratelimiter.Client, rate int64) func() bool {
			take := taker(t.Context(), client, rratelimiter.Config{Type: kind, Rate: rate, Interval: time.Minute})
			return func() bool {
				ok, err := take()
				require.NoError(t, err)
				return ok
			}
		}
		old := by(newClient(), 1000)
		assert.Equal(t, 15, grantsOf(5, old))
		time.Sleep(59 * time.Second)
		require.True(t, old())
		time.Sleep(59 * time.Second)
		require.True(t, old())
		client := newClient()
		take := by(client, 2)
		if beside == "3.12.0" {
			assert.True(t, take(), "the window began just now")
		}
		assert.False(t, take(), "permits in use stay so")
		assert.LessOrEqual(t, grantsOf(20, take), 41, "two in each minute; by the old rate it would be 60")
		assert.EqualValues(t, 2, limitertest.ConfigOf(t, client.RateLimiter("user:ann")).Rate)
	})
}

// setters set the rate of one limiter on purpose.
func setters(t *testing.T, rdb redistest.Client, cfg rratelimiter.Config) map[string]limitertest.Change {
	fields := fmt.Sprintf("HSET config rate %d interval %d type 0", cfg.Rate, cfg.Interval.Milliseconds())
	return map[string]limitertest.Change{
		"SetRate":    limitertest.SetRate(cfg),
		"KeepState":  limitertest.SetRate(cfg, rratelimiter.KeepState()),
		"UpdateRate": limitertest.UpdateRate(cfg),
		"TrySetRate": limitertest.MakeAnew(cfg),
		// As Redisson does, and what an earlier program of this package left.
		"Redisson's setRate": func(_ context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			limitertest.Damage(t, rdb, l, fields+"; DEL value permits")
			return nil
		},
		"unknown": func(_ context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			limitertest.Damage(t, rdb, l, "DEL config; "+fields+" keepAliveTime 0")
			return nil
		},
	}
}

// A rate that was set for one limiter stays, also if it is the default of the program before.
func TestRateSetOnPurposeStays(t *testing.T) {
	t.Parallel()
	first, second := rratelimiter.PerMinute(1000), rratelimiter.PerMinute(2)
	limitertest.Each(t, map[string]rratelimiter.Config{"another": rratelimiter.PerMinute(50), "the first": first}, func(t *testing.T, cfg rratelimiter.Config) {
		redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
			setters := setters(t, rdb, cfg)
			if cfg == first { // There is no difference: the rate set is the one found.
				delete(setters, "Redisson's setRate")
			}
			limitertest.Each(t, setters, func(t *testing.T, set limitertest.Change) {
				l := limitertest.ByDefault(limitertest.NewClient(t, rdb), redistest.Name(t), first)
				limitertest.MustAcquire(t, l, 1)
				require.NoError(t, set(t.Context(), limitertest.NewClient(t, rdb), l))
				for range 3 {
					program := limitertest.NewClient(t, rdb)
					later := limitertest.ByDefault(program, l.Name(), second)
					limitertest.MustAcquire(t, later, 1)
					limitertest.TryAll(t, program, 1, later, limitertest.ByDefault(program, limitertest.Besides(l.Name()), second))
					assert.Equal(t, cfg.Rate, limitertest.ConfigOf(t, later).Rate)
				}
			})
		})
	})
}

var defaultTests = limitertest.Tests[redistest.Client]{
	// During a roll-out the default of the newest program holds; each program logs it once.
	"programs with other defaults do not fight": func(t *testing.T, rdb redistest.Client) {
		changes := 0
		rdb.AddHook(limitertest.BeforeScript(lua.SetRate, func() { changes++ }))
		var logs [2]bytes.Buffer
		var clients [2]*rratelimiter.Client
		for i := range clients {
			clients[i] = limitertest.NewClient(t, rdb, limitertest.LogTo(&logs[i]))
		}
		before, after := rratelimiter.PerMinute(1000), rratelimiter.PerMinute(2)
		ask := func(i int, cfg rratelimiter.Config, key string) {
			limittest.Take(t, clients[i].Keyed("user:", cfg), key, 1)
		}
		keys := []string{"ann", "bob", "eve"}
		for _, key := range keys {
			ask(0, before, key)
		}
		for range 60 {
			for _, key := range keys {
				ask(1, after, key)
				ask(0, before, key)
			}
			time.Sleep(7 * time.Second)
		}
		synctest.Wait()
		assert.Equal(t, len(keys), changes, "one for each key")
		for _, key := range keys {
			assert.EqualValues(t, 2, limitertest.ConfigOf(t, clients[0].RateLimiter("user:"+key)).Rate)
		}
		assert.Equal(t, 1, strings.Count(logs[1].String(), "\n"), logs[1].String())
		assert.Contains(t, logs[1].String(), `rate replaced" limiter=user: found="1000 in 1m0s, kept alive for 1m0s" want="2 in 1m0s, kept alive for 1m0s"`)
		assert.Equal(t, 1, strings.Count(logs[0].String(), "\n"), logs[0].String())
		assert.Contains(t, logs[0].String(), `rate differs" limiter=user: found="2 in 1m0s" want="1000 in 1m0s"`)

		// The program before, begun again, is the one that began last.
		clients[0] = limitertest.NewClient(t, rdb)
		ask(0, before, "ann")
		assert.EqualValues(t, 1000, limitertest.ConfigOf(t, clients[0].RateLimiter("user:ann")).Rate)
	},
	// What a program remembers of the rate before ends with the change.
	"changed default ends what is remembered": func(t *testing.T, rdb redistest.Client) {
		limitertest.MustAcquire(t, limitertest.ByDefault(limitertest.NewClient(t, rdb), "{a}", rratelimiter.PerHour(3)), 3)
		client := limitertest.NewClient(t, rdb)
		seen := client.RateLimiter("{a}", rratelimiter.WithRefusalCache())
		limitertest.MustRefuse(t, seen, 1)
		waiting := make(chan error, 1)
		go func() { waiting <- client.RateLimiter("{a}").Acquire(t.Context(), 1) }()
		synctest.Wait()
		limitertest.MustAcquire(t, limitertest.ByDefault(client, "{a}", rratelimiter.PerHour(100)), 1)
		synctest.Wait()
		require.Len(t, waiting, 1, "a waiting caller asks again")
		require.NoError(t, <-waiting)
		limitertest.MustAcquire(t, seen, 95)
		limitertest.MustRefuse(t, seen, 1)
	},
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	limitertest.OnMini(t, defaultTests)
}

// Peek and what else only reads say what there is, and change nothing.
func TestDefault_ReadsChangeNothing(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		name := redistest.Name(t)
		limitertest.MustAcquire(t, limitertest.ByDefault(limitertest.NewClient(t, rdb), name, rratelimiter.PerHour(1000)), 1)
		l := limitertest.ByDefault(limitertest.NewClient(t, rdb), name, rratelimiter.PerHour(2))
		peek := func() int64 {
			d, err := l.Peek(t.Context(), 1)
			require.NoError(t, err)
			return d.Limit
		}
		limitertest.RequireUntouched(t, rdb, name, func() {
			assert.EqualValues(t, 1000, peek())
			assert.EqualValues(t, 999, limitertest.Available(t, l))
			assert.EqualValues(t, 1000, limitertest.ConfigOf(t, l).Rate)
		})
		limitertest.MustAcquire(t, l, 1)
		assert.EqualValues(t, 2, limitertest.ConfigOf(t, l).Rate)
		assert.EqualValues(t, 2, peek())
	})
}

// A decision is one script call, as ever: the first of a handle, and of a program that
// finds what it wants or what was set on purpose. Only a change takes two more.
func TestDefaultCostsNoCall(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]time.Duration{"for ever": 0, "kept alive": time.Hour}, func(t *testing.T, keepAlive time.Duration) {
		rdb, _ := redistest.Mini(t)
		cfg := rratelimiter.Config{Rate: 1000, Interval: time.Minute, KeepAlive: keepAlive}
		limitertest.MustAcquire(t, limitertest.ByDefault(limitertest.NewClient(t, rdb), "a", cfg), 1)
		require.NoError(t, limitertest.NewClient(t, rdb).RateLimiter("other").SetRate(t.Context(), cfg), "the server knows the script from here on")
		sent := limitertest.CountCommands(rdb)
		calls := func(rate int64) (each []int) {
			cfg.Rate = rate
			l := limitertest.ByDefault(limitertest.NewClient(t, rdb), "a", cfg)
			before := sent.Scripts()
			for range 3 {
				limitertest.MustAcquire(t, l, 1)
				each = append(each, sent.Scripts()-before)
			}
			return each
		}
		assert.Equal(t, []int{1, 2, 3}, calls(1000))
		assert.Equal(t, []int{3, 4, 5}, calls(2000))
		cfg.Rate = 3000
		require.NoError(t, limitertest.NewClient(t, rdb).RateLimiter("a").SetRate(t.Context(), cfg))
		assert.Equal(t, []int{1, 2, 3}, calls(4000))
	})
}

// The log reports once the prefixes of one Client that may share keys, or that have two rates.
func TestPrefixes_ConflictsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	minute := rratelimiter.PerMinute
	keyed := func(prefix string, rate int64) func(t *testing.T, c *rratelimiter.Client) {
		return func(t *testing.T, c *rratelimiter.Client) {
			limittest.Take(t, c.Keyed(prefix, minute(rate)), "x", 1)
		}
	}
	handler := func(rate int64, opts ...httplimit.Option) func(t *testing.T, c *rratelimiter.Client) {
		return func(t *testing.T, c *rratelimiter.Client) {
			h := httplimit.New(c.Keyed("", minute(rate)), opts...).Handler(http.NotFoundHandler())
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		}
	}
	api, apiIP := httplimit.WithPrefix("api:"), httplimit.WithPrefix("api:ip:")
	type row struct {
		first, second func(t *testing.T, c *rratelimiter.Client)
		kind          limit.EventKind
		says          string
	}
	limitertest.Bubbles(t, map[string]row{
		"another rate":          {keyed("api", 10), keyed("api", 5), limit.RateDiffers, `limiter=api found="10 in 1m0s`},
		"a prefix that goes on": {keyed("api", 5), keyed("api2", 5), limit.PrefixesMeet, `neither begins with the other`},
		"the longer one first":  {keyed("api2", 5), keyed("api", 5), limit.PrefixesMeet, `neither begins with the other`},
		"prefixes that part":    {keyed("api:", 5), keyed("api2:", 7), "", ""},
		"middleware, continued": {handler(10, api), handler(5, apiIP), limit.PrefixesMeet, `api:ip:`},
		"middleware, hash tags": {handler(10, api, httplimit.WithHashTag()), handler(5, apiIP, httplimit.WithHashTag()), "", ""},
	}, func(t *testing.T, row row) {
		rdb, _ := redistest.Mini(t)
		recorder, log := &limitertest.Recorder{}, &bytes.Buffer{}
		client := limitertest.NewClient(t, rdb, rratelimiter.WithObserver(recorder), limitertest.LogTo(log))
		for range 3 { // like handles made for each request
			row.first(t, client)
			row.second(t, client)
		}
		synctest.Wait()
		var kinds []limit.EventKind
		for _, e := range recorder.Events() {
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
