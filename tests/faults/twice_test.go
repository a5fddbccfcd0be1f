package faults_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// twiceCase is a call on a limiter of rate 10 of which the caller holds some permits and others the rest
// of those in use.
type twiceCase struct {
	inUse int64 // by another Client
	call  func(ctx context.Context, t *testing.T, w *limitertest.Wire) error
	held  int64 // in use after it
}

// asks returns the call of a request that must be granted so many permits.
func asks(r limitertest.Request, want int64) func(context.Context, *testing.T, *limitertest.Wire) error {
	return func(_ context.Context, t *testing.T, w *limitertest.Wire) error {
		got, err := r(w)
		assert.Equal(t, want, got)
		return err
	}
}

// settles returns the call that settles a reservation of 4 permits with so many.
func settles(used int64, opts ...rratelimiter.ReserveOption) func(context.Context, *testing.T, *limitertest.Wire) error {
	return func(ctx context.Context, t *testing.T, w *limitertest.Wire) error {
		w.OnScript(func(*lua.Script, int) redistest.Action { return redistest.Pass })
		r := limitertest.Reserve(t, w.RateLimiter, 4, opts...)
		w.OnScript(func(*lua.Script, int) redistest.Action { return redistest.DuplicateLast })
		return r.Settle(ctx, used)
	}
}

// renews returns the call that renews a reservation of 4 permits.
func renews(opts ...rratelimiter.ReserveOption) func(context.Context, *testing.T, *limitertest.Wire) error {
	return func(ctx context.Context, t *testing.T, w *limitertest.Wire) error {
		w.OnScript(func(*lua.Script, int) redistest.Action { return redistest.Pass })
		r := limitertest.Reserve(t, w.RateLimiter, 4, opts...)
		w.OnScript(func(*lua.Script, int) redistest.Action { return redistest.DuplicateLast })
		return r.Renew(ctx)
	}
}

var twiceCases = map[string]twiceCase{
	"TryAcquire":              {2, asks(limitertest.TryFor(3), 3), 5},
	"TryAcquire of all":       {0, asks(limitertest.TryFor(10), 10), 10},
	"TryAcquire, refused":     {9, asks(limitertest.TryFor(3), 0), 9},
	"Acquire":                 {2, func(ctx context.Context, _ *testing.T, w *limitertest.Wire) error { return w.Acquire(ctx, 3) }, 5},
	"Take":                    {2, asks(limitertest.TakeFor(3), 3), 5},
	"Take of the rest":        {2, asks(limitertest.TakeFor(8), 8), 10},
	"TakeUpTo, all of it":     {2, asks(limitertest.UpToFor(3), 3), 5},
	"TakeUpTo, some of it":    {2, asks(limitertest.UpToFor(20), 8), 10},
	"Reserve":                 {2, asks(limitertest.ReserveFor(3), 3), 5},
	"Reserve, the rest":       {2, asks(limitertest.ReserveFor(8), 8), 10},
	"Settle, more":            {2, settles(6), 8},
	"Settle, beyond the rate": {2, settles(25), 27},
	"Settle, less":            {2, settles(1), 3},
	"Cancel":                  {2, settles(0), 2},
	"Renew":                   {2, renews(), 6},
	"Renew, held":             {2, renews(hold), 6},
	"Reserve, held":           {2, asks(limitertest.ReserveFor(3, hold), 3), 5},
	"Settle, held, less":      {2, settles(1, hold), 3},
	"Settle, held, the same":  {2, settles(4, hold), 6},
	"Settle, held, more":      {2, settles(6, hold), 8},
	"Release":                 {7, func(ctx context.Context, _ *testing.T, w *limitertest.Wire) error { return w.Release(ctx, 2) }, 5},
	"Release of several calls": {7, func(ctx context.Context, t *testing.T, w *limitertest.Wire) error {
		for range 130 {
			w.ManyRows(t, 0, 1)
		}
		return w.Release(ctx, 131)
	}, 6},
	"give-back": {2, func(ctx context.Context, t *testing.T, w *limitertest.Wire) error {
		d, undo, err := w.Client.Keyed("", limitertest.Hourly(10)).TakeReturnable(ctx, w.Name(), 3)
		require.NoError(t, err)
		require.True(t, d.Granted)
		return undo(ctx)
	}, 2},
	"UpdateRate": {2, func(ctx context.Context, t *testing.T, w *limitertest.Wire) error {
		w.Rate = 20
		return limitertest.Second(w.UpdateRate(ctx, limitertest.Hourly(20), rratelimiter.KeepState()))
	}, 2},
	"SetRate": {2, func(ctx context.Context, _ *testing.T, w *limitertest.Wire) error {
		return w.SetRate(ctx, limitertest.Hourly(10))
	}, 0},
	"Reset": {2, func(ctx context.Context, _ *testing.T, w *limitertest.Wire) error { return w.Reset(ctx) }, 0},
	"Expire": {2, func(ctx context.Context, _ *testing.T, w *limitertest.Wire) error {
		return limitertest.Second(w.Expire(ctx, time.Hour))
	}, 2},
	"AvailablePermits": {2, func(ctx context.Context, _ *testing.T, w *limitertest.Wire) error {
		return limitertest.Second(w.AvailablePermits(ctx))
	}, 2},
	"Migrate": {2, func(ctx context.Context, _ *testing.T, w *limitertest.Wire) error {
		if err := limitertest.Second(w.Migrate(ctx)); !errors.Is(err, rratelimiter.ErrUnsupported) {
			return err
		}
		return nil
	}, 2},
}

func shortIDs(version string) bool {
	return version == limitertest.MembersOf["B"] || version == limitertest.MembersOf["C"]
}

// Something on the way may send a request twice, and deliver the answer to the second: it is counted once.
func TestRequest_DuplicateCountsOnce(t *testing.T) {
	t.Parallel()
	for what, c := range twiceCases {
		eachLayout(t, what, func(t *testing.T, version string) {
			for name, action := range map[string]redistest.Action{"first": redistest.Duplicate, "last": redistest.DuplicateLast} {
				if shortIDs(version) && name == "last" {
					continue // a millisecond later the id may be another's: see TestTryAcquire_DuplicateWithShortID
				}
				w := newWireInUse(t, 10, c.inUse, version)
				w.OnScript(func(*lua.Script, int) redistest.Action { return action })
				require.NoError(t, c.call(t.Context(), t, w), name)
				w.CheckHeld(t, c.held, name)
			}
		})
	}
}

// The same for several limiters.
func TestTryAcquireAll_DuplicateCountsOnce(t *testing.T) {
	t.Parallel()
	for _, permits := range []int64{3, 10} {
		eachLayout(t, "all", func(t *testing.T, version string) {
			for name, action := range map[string]redistest.Action{"first": redistest.Duplicate, "last": redistest.DuplicateLast} {
				if shortIDs(version) && name == "last" {
					continue
				}
				w := newBundle(t, 10, version)
				w.OnScript(func(*lua.Script, int) redistest.Action { return action })
				w.mustTryAll(t, permits)
				w.checkAll(t, three{permits, permits, permits}, "twice")
			}
		})
	}
}

// A short id at a member of this millisecond is the call's own, whose request came twice.
func TestTryAcquire_DuplicateWithShortID(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{"B", "C"} {
		synctest.Test(t, func(t *testing.T) {
			rdb, m := redistest.Mini(t)
			proxy := redistest.MiniProxy(t, m)
			client := limitertest.NewClient(t, proxy.Client(t, nil), rratelimiter.WithRedissonVersion(limitertest.MembersOf[layout]))
			byDefault := rratelimiter.WithDefault(limitertest.Hourly(10))
			a, b := client.RateLimiter("{s}a", byDefault), client.RateLimiter("{s}b", byDefault)
			proxy.OnCommand(func(c redistest.Command) redistest.Action {
				if c.Name() == "eval" || c.Name() == "evalsha" {
					return redistest.DuplicateLast
				}
				return redistest.Pass
			})
			limitertest.MustAcquire(t, a, 3)
			assert.True(t, limitertest.TryAll(t, client, 2, a, b))
			r := limitertest.Reserve(t, a, 1)
			require.NoError(t, r.Settle(t.Context(), 4))
			limitertest.MustAcquire(t, b, 8)
			assert.EqualValues(t, 3+2+4, limitertest.InUse(t, rdb, limitertest.KeysOf(a).Permits))
			assert.EqualValues(t, 2+8, limitertest.InUse(t, rdb, limitertest.KeysOf(b).Permits))
			proxy.Settle(t)
		})
	}
}

// A sliding log keeps members too. Nothing tells two requests of a fixed window or a bucket apart.
func TestSlidingLog_DuplicateCountsOnce(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(t *testing.T, l *slidinglog.Limiter, key string) int64{
		"some": func(t *testing.T, l *slidinglog.Limiter, key string) int64 {
			assert.True(t, limittest.Take(t, l, key, 3).Granted)
			return 3
		},
		"all": func(t *testing.T, l *slidinglog.Limiter, key string) int64 {
			assert.True(t, limittest.Take(t, l, key, 10).Granted)
			return 10
		},
		"one": func(t *testing.T, l *slidinglog.Limiter, key string) int64 {
			for range 10 {
				assert.True(t, limittest.Take(t, l, key, 1).Granted)
			}
			return 10
		},
		"up to": func(t *testing.T, l *slidinglog.Limiter, key string) int64 {
			assert.True(t, limittest.Take(t, l, key, 3).Granted)
			taken, _, err := l.TakeUpTo(t.Context(), key, 20)
			require.NoError(t, err)
			assert.EqualValues(t, 7, taken)
			return 10
		},
		"undone": func(t *testing.T, l *slidinglog.Limiter, key string) int64 {
			_, undo, err := l.TakeReturnable(t.Context(), key, 3)
			require.NoError(t, err)
			require.NoError(t, undo(t.Context()))
			return 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, action := range []redistest.Action{redistest.Duplicate, redistest.DuplicateLast} {
				proxy, rdb := redistest.StartProxy(t, redistest.Shared(t).Addr()), redistest.Redis(t)
				proxy.OnCommand(func(c redistest.Command) redistest.Action {
					if c.Name() == "evalsha" {
						return action
					}
					return redistest.Pass
				})
				client := rratelimiter.New(proxy.FairClient(t, &redistest.Options{}), rratelimiter.WithCallTimeout(time.Minute))
				l := slidinglog.New(client, slidinglog.Config{Limit: 10, Window: time.Hour})
				key := redistest.Name(t)
				held := ask(t, l, key)
				proxy.Settle(t)
				assert.Equal(t, held, rdb.ZCard(t.Context(), key).Val())
				require.NoError(t, rdb.Del(t.Context(), key).Err())
			}
		})
	}
}
