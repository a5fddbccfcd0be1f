package faults_test

import (
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

// shortIDs reports whether the ids of two calls may meet: the copy of a call that comes a millisecond later may then take
// its own for another's. See TestTryAcquire_DuplicateWithShortID.
func shortIDs(version string) bool {
	return version == limitertest.MembersOf["B"] || version == limitertest.MembersOf["C"]
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
	limitertest.Each(t, map[string]func(t *testing.T, l *slidinglog.Limiter, key string) int64{
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
	}, func(t *testing.T, ask func(t *testing.T, l *slidinglog.Limiter, key string) int64) {
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

// A copy of two reservations that comes late changes nothing, though more is free by then than when
// they were decided.
func TestReserve_LateCopyOfTwoChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWire(t, 10, 6)
	several := func() int64 {
		keys := w.Keys.List()
		answer, err := w.Redis.Eval(t.Context(), lua.Acquire.Source, keys,
			"\x10an id 16 bytes..\x05\x00\x00\x00", 8, "", "s", "", "", 0, 5, 1, 3, 1).Int64Slice()
		require.NoError(t, err)
		return answer[2]
	}
	assert.EqualValues(t, 3, several(), "one of two")
	require.NoError(t, w.Other.Release(t.Context(), 6))
	assert.EqualValues(t, 3, several())
	assert.EqualValues(t, 7, limitertest.Available(t, w.Other))
	w.CheckHeld(t, 3, "once")
}
