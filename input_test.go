package rratelimiter_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// requireRefused checks that a call fails as it should, that its message names
// the limiter and the call and says so much, and that nothing reached Redis.
func requireRefused(t *testing.T, sent *limitertest.Counter, l *rratelimiter.RateLimiter, op, text string, want, got error) {
	t.Helper()
	method, _, _ := strings.Cut(op, ",")
	require.ErrorIs(t, got, want)
	assert.Contains(t, got.Error(), `"`+l.Name()+`"`)
	assert.Contains(t, got.Error(), method)
	assert.Contains(t, got.Error(), text)
	assert.Zero(t, sent.Total(), "commands sent")
}

// requireAllRefused is requireRefused of all calls.
func requireAllRefused(t *testing.T, sent *limitertest.Counter, l *rratelimiter.RateLimiter, text string, want error) {
	t.Helper()
	for op, call := range limitertest.Operations {
		requireRefused(t, sent, l, op, text, want, call(t.Context(), l))
	}
	requireRefused(t, sent, l, "Wait", text, want, l.Wait(t.Context()))
	requireRefused(t, sent, l, "WaitN", text, want, l.WaitN(t.Context(), 2))
	if errors.Is(want, rratelimiter.ErrInvalidConfig) {
		requireRefused(t, sent, l, "RateLimiter", text, want, l.Err())
	}
}

var input = limitertest.Tests[redistest.Client]{
	"Permits": func(t *testing.T, rdb redistest.Client) {
		ctx := t.Context()
		withRate := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Hour))
		l := limitertest.NewHandle(t, rdb, rratelimiter.WithDefault(limitertest.Every(10, time.Hour)))
		sent := limitertest.CountCommands(rdb)
		for _, permits := range []int64{math.MinInt64, -1, 0, 1 << 32, math.MaxInt64} {
			for op, err := range map[string]error{
				"TryAcquire": limitertest.Second(l.TryAcquire(ctx, permits, time.Second)),
				"Acquire":    l.Acquire(ctx, permits),
				"WaitN":      l.WaitN(ctx, permits),
				"Take":       limitertest.Second(l.Take(ctx, permits)),
			} {
				requireRefused(t, sent, l, op, "between 1 and 4294967295", rratelimiter.ErrInvalidPermits, err)
			}
		}
		for _, permits := range []int64{math.MinInt64, -1, 1 << 32, math.MaxInt64} {
			_, err := l.Peek(ctx, permits)
			requireRefused(t, sent, l, "Peek", "between 0 and 4294967295", rratelimiter.ErrInvalidPermits, err)
		}
		for _, permits := range []int64{math.MinInt64, -1, 1 << 53, math.MaxInt64} {
			err := l.Release(ctx, permits)
			requireRefused(t, sent, l, "Release", "between 0 and 9007199254740991", rratelimiter.ErrInvalidPermits, err)
		}
		require.NoError(t, withRate.Release(ctx, 0))
		assert.Zero(t, sent.Total(), "a release of nothing")
	},

	// Of a lease too nothing is taken for permits that no request can ask for: it stays as it is.
	"PermitsOfALease": func(t *testing.T, rdb redistest.Client) {
		l := limitertest.NewHandle(t, rdb, rratelimiter.WithDefault(limitertest.Every(10_000, time.Hour)), rratelimiter.WithLease(rratelimiter.Lease{}))
		for range 100 {
			limitertest.MustAcquire(t, l, 1)
			time.Sleep(time.Millisecond)
		}
		sent := limitertest.CountCommands(rdb)
		limitertest.MustAcquire(t, l, 1)
		require.Zero(t, sent.Total(), "there is a lease")
		for _, permits := range []int64{1 << 32, math.MaxInt64} {
			requireRefused(t, sent, l, "TryAcquire", "between 1", rratelimiter.ErrInvalidPermits, limitertest.Second(l.TryAcquire(t.Context(), permits, 0)))
			requireRefused(t, sent, l, "Acquire", "between 1", rratelimiter.ErrInvalidPermits, l.Acquire(t.Context(), permits))
		}
		limitertest.MustAcquire(t, l, 1)
		assert.Zero(t, sent.Total())
	},

	"For": func(t *testing.T, rdb redistest.Client) {
		l := limitertest.NewLimiter(t, rdb, rratelimiter.PerHour(10))
		sent := limitertest.CountCommands(rdb)
		for _, d := range []time.Duration{math.MinInt64, -time.Second, 0, 1, time.Millisecond - 1, 100*366*24*time.Hour + 1, math.MaxInt64} {
			_, err := l.UpdateRate(t.Context(), rratelimiter.PerHour(20), rratelimiter.For(d))
			requireRefused(t, sent, l, "UpdateRate", "For", rratelimiter.ErrInvalidConfig, err)
			err = l.SetRate(t.Context(), rratelimiter.PerHour(20), rratelimiter.For(d))
			requireRefused(t, sent, l, "SetRate", "For", rratelimiter.ErrInvalidConfig, err)
			err = l.SetRate(t.Context(), rratelimiter.PerHour(20), rratelimiter.For(d), rratelimiter.For(time.Hour))
			requireRefused(t, sent, l, "SetRate", "For", rratelimiter.ErrInvalidConfig, err)
		}
		require.NoError(t, l.SetRate(t.Context(), rratelimiter.PerHour(20), rratelimiter.For(100*366*24*time.Hour)))
		require.NoError(t, l.SetRate(t.Context(), rratelimiter.PerHour(20), rratelimiter.For(2*time.Millisecond-1)))
	},

	"TimesToLive": func(t *testing.T, rdb redistest.Client) {
		l := limitertest.NewHandle(t, rdb)
		sent := limitertest.CountCommands(rdb)
		for _, ttl := range []time.Duration{math.MinInt64, -time.Second, -1, 0, 1, time.Millisecond - 1} {
			_, err := l.Expire(t.Context(), ttl)
			requireRefused(t, sent, l, "Expire", "1ms", rratelimiter.ErrInvalidConfig, err)
		}
		for text, moments := range map[string][]time.Time{
			"1970":        {{}, time.Unix(0, 0), time.Unix(-1, 0)},
			"ClearExpire": {time.UnixMilli(math.MaxInt64), time.Unix(1<<60, 0), time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)},
		} {
			for _, at := range moments {
				_, err := l.ExpireAt(t.Context(), at)
				requireRefused(t, sent, l, "ExpireAt", text, rratelimiter.ErrInvalidConfig, err)
			}
		}
	},

	"Names": func(t *testing.T, rdb redistest.Client) {
		sent := limitertest.CountCommands(rdb)
		mapper := rratelimiter.WithNameMapper(func(name string) string { return strings.TrimPrefix(name, "gone") })
		for to, l := range map[string]*rratelimiter.RateLimiter{
			"": limitertest.NewHandle(t, rdb), "gone": limitertest.NewClient(t, rdb, mapper).RateLimiter("name"),
		} {
			requireRefused(t, sent, l, "Rename", "name is empty", rratelimiter.ErrInvalidConfig, l.Rename(t.Context(), to))
		}
	},

	"Options": func(t *testing.T, rdb redistest.Client) {
		with := func(opts ...rratelimiter.Option) *rratelimiter.RateLimiter {
			return limitertest.NewClient(t, rdb, opts...).RateLimiter("name")
		}
		nothing := rratelimiter.WithNameMapper(func(string) string { return "" })
		byDefault := rratelimiter.WithDefault(rratelimiter.PerDay(1))
		sent := limitertest.CountCommands(rdb)
		for text, limiters := range map[string][]*rratelimiter.RateLimiter{
			"WithClientID":              {with(rratelimiter.WithClientID(""))},
			"the name is empty":         {with(rratelimiter.WithClientName(""))},
			"129 bytes, more than":      {with(rratelimiter.WithClientName(strings.Repeat("x", 129)))},
			`holds '\n'`:                {with(rratelimiter.WithClientName("a\nb"))},
			`holds '\u202e'`:            {with(rratelimiter.WithClientName("a\u202eb"))},
			"no UTF-8":                  {with(rratelimiter.WithClientName("a\xff"))},
			"WithNameMapper":            {with(rratelimiter.WithNameMapper(nil))},
			"WithObserver":              {with(rratelimiter.WithObserver(nil))},
			"WithLogger":                {with(rratelimiter.WithLogger(nil))},
			"Redis client is nil":       {limitertest.NewClient(t, nil).RateLimiter("name")},
			"wraps one that is nil":     {limitertest.NewClient(t, redistest.WrappedNilClient()).RateLimiter("name")},
			"name is empty":             {limitertest.NewClient(t, rdb).RateLimiter(""), with(nothing)},
			"0 replicas within 1s":      {with(rratelimiter.WithReplicas(0, time.Second))},
			"-1 replicas within 1s":     {with(rratelimiter.WithReplicas(-1, time.Second))},
			"1 replicas within 0s":      {with(rratelimiter.WithReplicas(1, 0))},
			"1 replicas within -1s":     {with(rratelimiter.WithReplicas(1, -time.Second))},
			"1 replicas within 1.5ms":   {with(rratelimiter.WithReplicas(1, 1500*time.Microsecond))},
			"third of the call timeout": {with(rratelimiter.WithReplicas(1, time.Second), rratelimiter.WithCallTimeout(2*time.Second))},
		} {
			for _, l := range limiters {
				requireAllRefused(t, sent, l, text, rratelimiter.ErrInvalidConfig)
				requireRefused(t, sent, l, "Release", text, rratelimiter.ErrInvalidConfig, l.Release(t.Context(), 0))
			}
		}

		bad := limitertest.NewClient(t, rdb, rratelimiter.WithClientID(""), rratelimiter.WithNameMapper(nil))
		good := limitertest.NewClient(t, rdb)
		for _, err := range []error{
			limitertest.Second(bad.RateLimiter("name").Take(t.Context(), 1)), bad.Err(), bad.Keyed("", rratelimiter.PerDay(1)).Err(),
			limitertest.Second(bad.TakeAll(t.Context())),
		} {
			assert.ErrorContains(t, err, "WithClientID")
			assert.ErrorContains(t, err, "WithNameMapper", "all that is wrong is said at once")
		}
		keyed := good.Keyed("k:", rratelimiter.PerDay(0))
		require.ErrorIs(t, keyed.Err(), rratelimiter.ErrInvalidConfig)
		requireAllRefused(t, sent, keyed.Limiter("a"), "rate 0", rratelimiter.ErrInvalidConfig)
		for text, opt := range map[string]rratelimiter.LimiterOption{
			"WithDefault": byDefault, "1h0m0s": rratelimiter.WithLease(rratelimiter.Lease{Permits: 1, Life: time.Hour}),
			"-1 permits": rratelimiter.WithLease(rratelimiter.Lease{Permits: -1}), "the name is empty": rratelimiter.WithName(""),
			"4294967296 permits": rratelimiter.WithLease(rratelimiter.Lease{Permits: rratelimiter.MaxPermits + 1}),
			"the life -1ns":      limitertest.Ahead(-1),
		} {
			keyed := good.Keyed("o:", rratelimiter.PerHour(1), rratelimiter.WithShadow(), opt)
			require.ErrorIs(t, keyed.Err(), rratelimiter.ErrInvalidConfig)
			requireAllRefused(t, sent, keyed.Limiter("a"), text, rratelimiter.ErrInvalidConfig)
		}
		leasing := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion("3.34.1")).RateLimiter("name", limitertest.Ahead(0))
		requireAllRefused(t, sent, leasing, "3.34.1", rratelimiter.ErrUnsupported)
		for _, err := range []error{good.Err(), good.RateLimiter("name", byDefault).Err(), good.Keyed("", rratelimiter.PerDay(1)).Err()} {
			assert.NoError(t, err)
		}

		l := limitertest.NewClient(t, rdb, nil).RateLimiter("name", nil)
		require.NoError(t, l.SetRate(t.Context(), limitertest.Every(1, time.Hour), nil))
		limitertest.MustAcquire(t, l, 1)
	},

	"Contexts": func(t *testing.T, rdb redistest.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(1, time.Hour))
		sent := limitertest.CountCommands(rdb)
		canceled := limitertest.EndedContext(t)
		late, cancel := context.WithDeadline(t.Context(), time.Now())
		defer cancel()
		for op, call := range limitertest.Operations {
			for _, ctx := range []context.Context{canceled, late} {
				err := call(ctx, l)
				requireRefused(t, sent, l, op, "", ctx.Err(), err)
				assert.NotErrorIs(t, err, rratelimiter.ErrUnknownOutcome, "nothing was sent")
			}
		}
		synctest.Wait()
		assert.Zero(t, sent.Total())
	},

	"OfAClosedClient": func(t *testing.T, rdb redistest.Client) {
		client := rratelimiter.New(rdb, limitertest.Patient())
		l := client.RateLimiter(redistest.Name(t))
		limitertest.MustTrySetRate(t, l, limitertest.Every(1, time.Second))
		require.NoError(t, client.Close(t.Context()))
		sent := limitertest.CountCommands(rdb)
		requireAllRefused(t, sent, l, "closed", rratelimiter.ErrClosed)
		requireAllRefused(t, sent, client.RateLimiter(l.Name()), "closed", rratelimiter.ErrClosed)
		requireRefused(t, sent, l, "Release", "closed", rratelimiter.ErrClosed, l.Release(t.Context(), 0))
		assert.NoError(t, rdb.Ping(t.Context()).Err(), "the Redis client stays open")
	},

	"NameMapper": func(t *testing.T, rdb redistest.Client) {
		mapper := rratelimiter.WithNameMapper(func(name string) string { return "shop:" + name })
		l := limitertest.NewClient(t, rdb, mapper).RateLimiter("orders")
		assert.Equal(t, "orders", l.Name())
		limitertest.MustTrySetRate(t, l, limitertest.Every(10, time.Hour))
		limitertest.MustAcquire(t, l, 4)
		assert.ElementsMatch(t, []string{"shop:orders", "{shop:orders}:value", "{shop:orders}:permits"}, rdb.Keys(t.Context(), "*").Val())
		assert.EqualValues(t, 6, limitertest.Available(t, limitertest.NewClient(t, rdb).RateLimiter("shop:orders")))
		require.NoError(t, l.Rename(t.Context(), "sales"))
		assert.ElementsMatch(t, []string{"shop:sales", "{shop:sales}:value", "{shop:sales}:permits"}, rdb.Keys(t.Context(), "*").Val())
	},
}

func TestInput(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, input, func(t *testing.T, rdb redistest.Client, test func(t *testing.T, rdb redistest.Client)) { test(t, rdb) })
}

func TestInputPermitsAboveTheRate(t *testing.T) {
	t.Parallel()
	for _, set := range []bool{true, false} {
		redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
			l := limitertest.NewHandle(t, rdb, rratelimiter.WithDefault(limitertest.Every(10, time.Hour)))
			if set {
				limitertest.MustAcquire(t, l, 3)
				overdue := time.Now().Add(-2 * time.Hour)
				require.NoError(t, rdb.ZAdd(t.Context(), limitertest.KeysOf(l).Permits, redis.Z{
					Score: float64(overdue.UnixMilli()), Member: "\x03abc\x01\x00\x00\x00",
				}).Err())
			}
			limitertest.RequireUntouched(t, rdb, l.Name(), func() {
				for op, err := range map[string]error{
					"TryAcquire": limitertest.Second(l.TryAcquire(t.Context(), 11, 0)),
					"Acquire":    l.Acquire(t.Context(), rratelimiter.MaxPermits),
					"Take":       limitertest.Second(l.Take(t.Context(), 11)),
				} {
					require.ErrorIs(t, err, rratelimiter.ErrPermitsExceedRate)
					assert.Contains(t, err.Error(), op)
					assert.Contains(t, err.Error(), l.Name())
					assert.Contains(t, err.Error(), "ask for fewer or raise the rate")
				}
			})
		})
	}
}

func TestInputConfig(t *testing.T) {
	t.Parallel()
	const second = time.Second
	for text, configs := range map[string][]rratelimiter.Config{
		"rate": {
			{}, limitertest.Every(0, second), limitertest.Every(-1, second), limitertest.Every(math.MinInt64, second),
			limitertest.Every(1<<53, second), limitertest.Every(math.MaxInt64, second),
		},
		"interval": {
			{Rate: 1}, limitertest.Every(1, -second), limitertest.Every(1, time.Microsecond), limitertest.Every(1, time.Millisecond-1),
			limitertest.Every(1, second+time.Microsecond), limitertest.Every(1, math.MaxInt64),
		},
		"keep-alive time": {
			{Rate: 1, Interval: second, KeepAlive: -second}, {Rate: 1, Interval: second, KeepAlive: second - time.Millisecond},
			{Rate: 1, Interval: second, KeepAlive: second + 1}, {Rate: 1, Interval: second, KeepAlive: 1},
		},
		"type": {{Type: 2, Rate: 1, Interval: second}, {Type: -1, Rate: 1, Interval: second}},
	} {
		for _, cfg := range configs {
			redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
				l := limitertest.NewHandle(t, rdb)
				sent := limitertest.CountCommands(rdb)
				_, err := l.TrySetRate(t.Context(), cfg)
				requireRefused(t, sent, l, "TrySetRate", text, rratelimiter.ErrInvalidConfig, err)
				_, err = l.UpdateRate(t.Context(), cfg)
				requireRefused(t, sent, l, "UpdateRate", text, rratelimiter.ErrInvalidConfig, err)
				err = l.SetRate(t.Context(), cfg, rratelimiter.KeepState())
				requireRefused(t, sent, l, "SetRate", text, rratelimiter.ErrInvalidConfig, err)
				l = limitertest.NewHandle(t, rdb, rratelimiter.WithDefault(cfg))
				requireAllRefused(t, sent, l, text, rratelimiter.ErrInvalidConfig)
				requireAllRefused(t, sent, l, "WithDefault", rratelimiter.ErrInvalidConfig)
			})
		}
	}
}

var inputEverywhere = limitertest.Tests[redistest.Client]{
	"TheLongestTimeToLive": func(t *testing.T, rdb redistest.Client) {
		for range 20 { // the time to live read in the millisecond in which it was set
			for what, expire := range map[string]func(l *rratelimiter.RateLimiter) (bool, error){
				"Expire": func(l *rratelimiter.RateLimiter) (bool, error) { return l.Expire(t.Context(), math.MaxInt64) },
				"ExpireAt": func(l *rratelimiter.RateLimiter) (bool, error) {
					return l.ExpireAt(t.Context(), time.Now().Add(math.MaxInt64-time.Second))
				},
			} {
				l := limitertest.NewLimiter(t, rdb, limitertest.Every(1, time.Hour))
				ttl, expires, err := l.TTL(t.Context())
				require.NoError(t, err)
				assert.Zero(t, ttl)
				assert.False(t, expires)
				assert.True(t, limitertest.Must(expire(l))(t))
				ttl, expires, err = l.TTL(t.Context())
				require.NoError(t, err)
				assert.True(t, expires)
				require.Greater(t, ttl, math.MaxInt64-time.Minute, what)
				limitertest.MustAcquire(t, l, 1)
				limitertest.MustRefuse(t, l, 1)
			}
		}
	},

	"WithoutARate": func(t *testing.T, rdb redistest.Client) {
		for _, op := range []string{"TryAcquire", "Acquire", "Take", "Peek", "TakeUpTo", "Release", "Reset", "AvailablePermits", "Config", "TTL", "Rename"} {
			l := limitertest.NewHandle(t, rdb)
			err := limitertest.Operations[op](t.Context(), l)
			require.ErrorIs(t, err, rratelimiter.ErrNotInitialized)
			assert.ErrorContains(t, err, op)
			assert.ErrorContains(t, err, `"`+l.Name()+`"`)
			assert.ErrorContains(t, err, "TrySetRate")
			assert.Empty(t, limitertest.ReadState(t, rdb, l.Name()))
		}
	},
}

func TestInputEverywhere(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, inputEverywhere, func(t *testing.T, test func(t *testing.T, rdb redistest.Client)) { redistest.Everywhere(t, test) })
}

// With one server: see TestCluster_RefusesNamesOfSeveralSlots.
func TestInputNamesWithBraces(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		for _, suffix := range []string{"{b}c", "{{b}}", "{b", "b}", "foo}bar", "{}x", "x{}", "}{", "*?[a]", " \x00\n"} {
			name := redistest.Name(t) + suffix
			l := limitertest.NewClient(t, rdb).RateLimiter(name)
			limitertest.MustTrySetRate(t, l, limitertest.Every(10, time.Hour))
			limitertest.MustAcquire(t, l, 4)
			assert.EqualValues(t, 6, limitertest.Available(t, l), name)
			set := redisson.KeysOf(name, "")
			assert.EqualValues(t, 3, rdb.Exists(t.Context(), set.Config, set.Value, set.Permits).Val())
			assert.Len(t, limitertest.ReadState(t, rdb, name), 3)
			require.NoError(t, l.Release(t.Context(), 1))
			require.NoError(t, l.Rename(t.Context(), name+"2"))
			assert.True(t, limitertest.Must(limitertest.NewClient(t, rdb).RateLimiter(name+"2").Delete(t.Context()))(t))
			assert.Empty(t, limitertest.ReadState(t, rdb, name+"2"))
		}
	})
}
