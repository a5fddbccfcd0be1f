package defaults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

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
			return func() bool { return limitertest.Must(take())(t) }
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

// Peek and what else only reads say what there is, and change nothing.
func TestDefault_ReadsChangeNothing(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		name := redistest.Name(t)
		limitertest.MustAcquire(t, limitertest.ByDefault(limitertest.NewClient(t, rdb), name, rratelimiter.PerHour(1000)), 1)
		l := limitertest.ByDefault(limitertest.NewClient(t, rdb), name, rratelimiter.PerHour(2))
		peek := func() int64 { return limitertest.Must(l.Peek(t.Context(), 1))(t).Limit }
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
		return func(t *testing.T, c *rratelimiter.Client) { limittest.Take(t, c.Keyed(prefix, minute(rate)), "x", 1) }
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

func TestKeyed(t *testing.T) {
	t.Parallel()
	limittest.Run(t, limittest.Kind{
		New: func(client *rratelimiter.Client, permits int64, window time.Duration, opts ...rratelimiter.LimiterOption) limittest.Limiter {
			return braced{client.Keyed("{", limitertest.Every(permits, window), opts...)}
		},
		Keyed:  true,
		Keys:   func(string) []string { return nil },
		Once:   true,
		AtEdge: 10,
	})
}

// braced is a limiter of keys that begin with a brace, which is its prefix: a user
// who may touch the test's own keys only can have no other.
type braced struct{ *rratelimiter.KeyedLimiter }

func (l braced) Take(ctx context.Context, key string, n int64) (limit.Decision, error) {
	return l.KeyedLimiter.Take(ctx, strings.TrimPrefix(key, "{"), n)
}

func (l braced) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	return l.KeyedLimiter.TakeReturnable(ctx, strings.TrimPrefix(key, "{"), n)
}

func (l braced) Peek(ctx context.Context, key string, n int64) (limit.Decision, error) {
	return l.KeyedLimiter.Peek(ctx, strings.TrimPrefix(key, "{"), n)
}

func (l braced) TakeUpTo(ctx context.Context, key string, n int64) (int64, limit.Decision, error) {
	return l.KeyedLimiter.TakeUpTo(ctx, strings.TrimPrefix(key, "{"), n)
}

func (l braced) Reset(ctx context.Context, key string) error {
	return l.KeyedLimiter.Reset(ctx, strings.TrimPrefix(key, "{"))
}

// newKeyed returns a limiter of keys, and the prefix of their limiters' names.
func newKeyed(t *testing.T, rdb rratelimiter.Redis, cfg rratelimiter.Config) (*rratelimiter.Client, limit.Returner, string) {
	t.Helper()
	client, prefix := limitertest.NewClient(t, rdb), redistest.Name(t)+":"
	return client, client.Keyed(prefix, cfg), prefix
}

// A key's limiter is the RateLimiter of prefix+key, set up at first use.
func TestKeyedNames(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		client, l, prefix := newKeyed(t, rdb, limitertest.Every(5, time.Hour))
		ann := client.RateLimiter(prefix + "ann")
		assert.Empty(t, limitertest.ReadState(t, rdb, ann.Name()), "nothing is set up before")
		assert.Equal(t, int64(3), limittest.Take(t, l, "ann", 2).Remaining)
		assert.EqualValues(t, 3, limitertest.Available(t, ann))
		assert.Equal(t, rratelimiter.Config{Rate: 5, Interval: time.Hour, KeepAlive: time.Hour}, limitertest.ConfigOf(t, ann))
		limitertest.MustAcquire(t, ann, 3)
		assert.False(t, limittest.Take(t, l, "ann", 1).Granted)
		assert.Equal(t, 5, limittest.Grants(t, l, "bob", 7), "each key has permits of its own")
		_, other, _ := newKeyed(t, rdb, limitertest.Every(5, time.Hour))
		assert.Equal(t, 5, limittest.Grants(t, other, "ann", 7), "and so has each prefix")
		require.NoError(t, ann.SetRate(t.Context(), limitertest.Every(8, time.Hour), rratelimiter.KeepState()))
		d := limittest.Take(t, l, "ann", 1)
		assert.True(t, d.Granted, "a key keeps a rate of its own")
		assert.Equal(t, int64(8), d.Limit)
		assert.Equal(t, 2, limittest.Grants(t, l, "ann", 4))
	})
}

var inTime = limitertest.Tests[redistest.Client]{
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
	// The names that outsiders choose keys for stay within their prefix.
	"hostile keys stay within their prefix": func(t *testing.T, rdb redistest.Client) {
		_, l, prefix := newKeyed(t, rdb, limitertest.Every(2, time.Hour))
		for _, key := range []string{"a b", "\x00", "\xff\xfe", "{", "}", "{}", "{a}b", "*", "a\r\nFLUSHALL\r\n", strings.Repeat("x", 5000), "ünï"} {
			assert.Equal(t, 2, limittest.Grants(t, l, key, 3), "%q", key)
		}
		for _, key := range rdb.Keys(t.Context(), "*").Val() {
			assert.Contains(t, key, prefix)
		}
	},
	"free permits of a limiter that is not made yet are its default's": func(t *testing.T, rdb redistest.Client) {
		cfg := rratelimiter.Config{Rate: 5, Interval: time.Minute, KeepAlive: time.Hour}
		perClient := cfg
		perClient.Type = rratelimiter.PerClient
		client := limitertest.NewClient(t, rdb)
		for name, l := range map[string]*rratelimiter.RateLimiter{
			"overall":    client.RateLimiter("overall", rratelimiter.WithDefault(cfg)),
			"per client": client.RateLimiter("per client", rratelimiter.WithDefault(perClient)),
			"of a Keyed": client.Keyed("users:", cfg).Limiter("ann"),
		} {
			assert.EqualValues(t, 5, limitertest.Available(t, l), "%s, unused", name)
			assert.False(t, limitertest.Must(l.Exists(t.Context()))(t), name)

			limitertest.MustAcquire(t, l, 2)
			assert.EqualValues(t, 3, limitertest.Available(t, l), name)
			time.Sleep(2 * time.Hour)
			assert.EqualValues(t, 5, limitertest.Available(t, l), "%s, expired", name)
		}

		l := client.RateLimiter("lost", rratelimiter.WithDefault(cfg))
		limitertest.MustAcquire(t, l, 2)
		require.NoError(t, rdb.Del(t.Context(), "lost").Err())
		assert.EqualValues(t, 3, limitertest.Available(t, l), "only the configuration was lost")

		require.ErrorIs(t, limitertest.Second(client.RateLimiter("none").AvailablePermits(t.Context())), rratelimiter.ErrNotInitialized)
	},
	// Of all Clients made in one moment, the last is the newest program.
	"the last Client of one moment wins": func(t *testing.T, rdb redistest.Client) {
		name, after := redistest.Name(t), rratelimiter.PerMinute(2)
		limitertest.MustAcquire(t, limitertest.ByDefault(limitertest.NewClient(t, rdb), name, rratelimiter.PerMinute(1000)), 1)
		for range 999 {
			limitertest.NewClient(t, rdb)
		}
		l := limitertest.ByDefault(limitertest.NewClient(t, rdb), name, after)
		limitertest.MustAcquire(t, l, 1)
		assert.Equal(t, after.Rate, limitertest.ConfigOf(t, l).Rate)
	},
	// Callers who wait are served as soon as the old rate lets them.
	"callers who wait hear the end of an override": func(t *testing.T, rdb redistest.Client) {
		l := limitertest.NewLimiter(t, rdb, rratelimiter.PerHour(10))
		require.NoError(t, l.SetRate(t.Context(), rratelimiter.PerHour(1), rratelimiter.For(time.Minute)))
		limitertest.MustAcquire(t, l, 1)
		start := time.Now()
		assert.True(t, limitertest.Must(l.TryAcquire(t.Context(), 1, 2*time.Minute))(t))
		assert.WithinDuration(t, start.Add(time.Minute), time.Now(), 2*time.Second)
	},
	// A client that has used none of its own permits during an override that another has set finds all of them at its end.
	"an override ends for a client that was idle": func(t *testing.T, rdb redistest.Client) {
		own := limitertest.PerClient(10, 24*time.Hour)
		ann := limitertest.NewLimiterOf(t, limitertest.NewClient(t, rdb), "orders", own)
		limitertest.MustAcquire(t, ann, 1)
		require.NoError(t, ann.Release(t.Context(), 1))
		bob := limitertest.NewClient(t, rdb).RateLimiter("orders")
		require.NoError(t, bob.SetRate(t.Context(), limitertest.PerClient(100, 24*time.Hour), rratelimiter.For(time.Hour)))
		time.Sleep(time.Hour)
		assert.True(t, limitertest.Must(ann.Peek(t.Context(), 10))(t).Granted)
		limitertest.MustAcquire(t, ann, 10)
		limitertest.MustRefuse(t, ann, 1)
	},
}

func TestDefaults_InVirtualTime(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, inTime, func(t *testing.T, rdb redistest.Client, test func(t *testing.T, rdb redistest.Client)) { test(t, rdb) })
}

// mappers are what WithNameMapper may be given.
var mappers = map[string]func(string) string{
	"none":     func(name string) string { return name },
	"prefix":   func(name string) string { return "app:" + name },
	"suffix":   func(name string) string { return name + ":v2" },
	"braces":   func(name string) string { return "{" + name + "}" },
	"hash tag": func(name string) string { return "{app}:value:" + name },
	"slots":    func(name string) string { return "{" + strconv.Itoa(len(name)%4) + "}:" + name },
	"lower":    strings.ToLower,
}

// A key whose Redis keys are another's, also by what a mapper makes of them, is refused and leaves the other alone. Those
// that only look so are what they were.
func TestKeyed_RefusesKeyOfAnotherLimiter(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ prefix, key, other, mapper string }{ // without another the key is not refused
		{"p:", "{ann}:value", "{ann}", "none"}, {"{shop}:", "ann:value", "ann", "none"}, {"", "{ann}", "ann", "none"},
		{"p:", "{ann}:value", "{ann}", "prefix"}, {"p:", "ann}:value:x", "ann", "braces"}, {"p:", "ann:value", "ann", "hash tag"},
		{"P:", "{ANN}:VALUE", "{ann}", "lower"}, {"p:", "{ann}:v2:value:x", "{ann}", "suffix"}, {"p:", "ann:value:abc", "ann", "slots"},
		{"p:", "ann:value", "", "none"}, {"p:", "ann", "", "braces"}, {"p:", "ann", "", "hash tag"}, {"value:", "ann", "", "hash tag"},
		{"p:", "value", "", "suffix"}, {"", "ann", "", "braces"}, {"{shop}:value:", "ann", "", "prefix"}, {"{Shop}:Value:", "ann", "", "lower"},
	} {
		rdb, _ := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb, rratelimiter.WithNameMapper(mappers[tt.mapper]))
		l := client.Keyed(tt.prefix, limitertest.Every(2, time.Hour))
		if tt.other == "" {
			assert.Equal(t, 2, limittest.Grants(t, l, tt.key, 3), tt)
			continue
		}
		_, err := l.Take(t.Context(), tt.key, 1)
		require.ErrorIs(t, err, rratelimiter.ErrInvalidConfig, tt)
		for _, text := range []string{strconv.Quote(tt.prefix), strconv.Quote(tt.key), "escape"} {
			require.ErrorContains(t, err, text)
		}
		assert.Equal(t, 2, limittest.Grants(t, l, tt.other, 3), tt)
	}
}

// Whatever the keys, each that is not refused has permits of its own, and sound state.
func TestKeyedKeysAreApart(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	word := rapid.SampledFrom([]string{"a", "b", "{", "}", ":", ":value", ":permits", "value", ":v2"})
	text := rapid.Map(rapid.SliceOfN(word, 1, 5), func(words []string) string { return strings.Join(words, "") })
	rapid.Check(t, func(rt *rapid.T) {
		require.NoError(rt, rdb.FlushAll(t.Context()).Err())
		mapper := mappers[rapid.SampledFrom(slices.Sorted(maps.Keys(mappers))).Draw(rt, "mapper")]
		prefix := rapid.OneOf(rapid.SampledFrom([]string{"", "p:", "{shop}:"}), text).Draw(rt, "prefix")
		chosen := rapid.SliceOfNDistinct(text, 1, 4, rapid.ID).Draw(rt, "keys")
		for _, key := range chosen {
			chosen = append(chosen, key+":value", key+":permits:x", "{"+key+"}")
		}
		slices.Sort(chosen)
		chosen = slices.Compact(chosen)
		cfg := rratelimiter.Config{Type: rapid.SampledFrom([]rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient}).Draw(rt, "type"), Rate: 1, Interval: time.Hour}
		client := rratelimiter.New(rdb, limitertest.Patient(), rratelimiter.WithNameMapper(mapper), rratelimiter.WithClientID(text.Draw(rt, "id")))
		l := client.Keyed(prefix, cfg)
		for _, want := range []bool{true, false} {
			for _, key := range chosen {
				d, err := l.Take(t.Context(), key, 1)
				if errors.Is(err, rratelimiter.ErrInvalidConfig) {
					continue
				}
				if err != nil || d.Granted != want {
					rt.Fatalf("%q: %v, %v", key, d, err)
				}
			}
		}
	})
}

// A program is as old for a limiter as the server's clock says.
func TestWithDefault_CountsByTheServersClock(t *testing.T) {
	t.Parallel()
	calls := map[string]func(context.Context, *rratelimiter.Client, *rratelimiter.RateLimiter) error{
		"TryAcquireAll": func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			other := limitertest.ByDefault(c, "{"+l.Name()+"}other", limitertest.Hourly(3))
			return limitertest.Second(c.TryAcquireAll(ctx, 0, l.Claim(1), other.Claim(1)))
		},
		"Take": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return limitertest.Second(l.Take(ctx, 1))
		},
		"Settle": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			r, err := l.Reserve(ctx, 1, 0)
			if err != nil {
				return err
			}
			if _, err := l.Delete(ctx); err != nil {
				return err
			}
			return r.Settle(ctx, 2)
		},
	}
	limitertest.Stepping(t, calls, func(t *testing.T, rdb redistest.Client, step func(time.Duration), call func(context.Context, *rratelimiter.Client, *rratelimiter.RateLimiter) error) {
		step(-45 * time.Second) // so much is the program ahead
		client := limitertest.NewClient(t, rdb)
		time.Sleep(10 * time.Second)
		require.NoError(t, call(t.Context(), client, limitertest.ByDefault(client, "a", limitertest.Hourly(3))))
		var began int64
		require.NoError(t, limitertest.Second(fmt.Sscanf(rdb.HGet(t.Context(), "a", "default").Val(), "3 3600000 0 0 %d", &began)))
		assert.InDelta(t, time.Now().Add(-55*time.Second).UnixMicro(), began, float64(2*time.Second/time.Microsecond))
	})
}
