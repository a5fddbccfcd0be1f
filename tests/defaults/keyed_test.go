package defaults_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

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

// run is for tables of tests that need nothing but a server.
func run(t *testing.T, rdb redistest.Client, test func(t *testing.T, rdb redistest.Client)) {
	t.Helper()
	test(t, rdb)
}

var keyedTests = limitertest.Tests[redistest.Client]{
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
			exists, err := l.Exists(t.Context())
			require.NoError(t, err)
			assert.False(t, exists, name)

			limitertest.MustAcquire(t, l, 2)
			assert.EqualValues(t, 3, limitertest.Available(t, l), name)
			time.Sleep(2 * time.Hour)
			assert.EqualValues(t, 5, limitertest.Available(t, l), "%s, expired", name)
		}

		l := client.RateLimiter("lost", rratelimiter.WithDefault(cfg))
		limitertest.MustAcquire(t, l, 2)
		require.NoError(t, rdb.Del(t.Context(), "lost").Err())
		assert.EqualValues(t, 3, limitertest.Available(t, l), "only the configuration was lost")

		_, err := client.RateLimiter("none").AvailablePermits(t.Context())
		require.ErrorIs(t, err, rratelimiter.ErrNotInitialized)
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
}

func TestKeyed_InVirtualTime(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, keyedTests, run)
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
		_, err := fmt.Sscanf(rdb.HGet(t.Context(), "a", "default").Val(), "3 3600000 0 0 %d", &began)
		require.NoError(t, err)
		assert.InDelta(t, time.Now().Add(-55*time.Second).UnixMicro(), began, float64(2*time.Second/time.Microsecond))
	})
}
