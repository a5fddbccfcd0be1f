package rratelimiter_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// plans are rates by key, which may change.
type plans struct {
	mu    sync.Mutex
	rates map[string]rratelimiter.Config
}

func (p *plans) of(key string) rratelimiter.Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rates[key]
}

func (p *plans) set(key string, cfg rratelimiter.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rates[key] = cfg
}

func newPlans() *plans {
	return &plans{rates: map[string]rratelimiter.Config{"ann": rratelimiter.PerHour(10), "bob": rratelimiter.PerMinute(100)}}
}

func take(t *testing.T, k *rratelimiter.KeyedLimiter, key string, n int64) limit.Decision {
	t.Helper()
	d, err := k.Take(t.Context(), key, n)
	require.NoError(t, err)
	return d
}

func TestKeyedFunc_GivesEachKeyItsRate(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		k := limitertest.NewClient(t, rdb).KeyedFunc("plan:", newPlans().of)
		require.NoError(t, k.Err())
		assert.Equal(t, limit.Decision{Granted: true, Limit: 10, Remaining: 6, ResetAfter: time.Hour}, take(t, k, "ann", 4))
		assert.Equal(t, limit.Decision{Granted: true, Limit: 100, Remaining: 96, ResetAfter: time.Minute}, take(t, k, "bob", 4))
		_, err := k.Take(t.Context(), "eve", 1)
		require.ErrorIs(t, err, rratelimiter.ErrInvalidConfig, "there is no plan for her")
		require.ErrorContains(t, err, `"plan:eve"`)
	})
}

func TestKeyedFunc_ChangedRateReachesTheKeyAtItsNextCall(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		p := newPlans()
		k := limitertest.NewClient(t, rdb).KeyedFunc("plan:", p.of, rratelimiter.WithRefusalCache())
		take(t, k, "ann", 10)
		assert.False(t, take(t, k, "ann", 1).Granted)
		p.set("ann", rratelimiter.PerHour(50))
		assert.Equal(t, limit.Decision{Granted: true, Limit: 50, Remaining: 39, ResetAfter: time.Hour}, take(t, k, "ann", 1), "the 10 are still in use")
		p.set("ann", rratelimiter.PerHour(10))
		assert.False(t, take(t, k, "ann", 1).Granted)
		p.set("ann", rratelimiter.Config{Rate: -1, Interval: time.Hour})
		require.ErrorIs(t, limitertest.Second(k.Take(t.Context(), "ann", 1)), rratelimiter.ErrInvalidConfig)
		p.set("ann", rratelimiter.PerHour(50))
		assert.True(t, take(t, k, "ann", 1).Granted)
	})
}

// Of two programs the one that learnt later wins, and none changes the rate back.
func TestKeyedFunc_ProgramsDoNotFight(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		early, late := newPlans(), newPlans()
		a, b := limitertest.NewClient(t, rdb).KeyedFunc("plan:", early.of), limitertest.NewClient(t, rdb).KeyedFunc("plan:", late.of)
		take(t, a, "ann", 1)
		take(t, b, "ann", 1)
		time.Sleep(time.Minute)
		early.set("ann", rratelimiter.PerHour(50))
		for range 5 {
			assert.EqualValues(t, 50, take(t, a, "ann", 1).Limit)
			assert.EqualValues(t, 50, take(t, b, "ann", 1).Limit, "it has not learnt yet")
			time.Sleep(2 * time.Minute)
		}
		late.set("ann", rratelimiter.PerHour(50))
		assert.EqualValues(t, 50, take(t, b, "ann", 1).Limit)
		late.set("ann", rratelimiter.PerHour(20))
		assert.EqualValues(t, 20, take(t, b, "ann", 1).Limit)
		time.Sleep(2 * time.Minute)
		assert.EqualValues(t, 20, take(t, a, "ann", 1).Limit, "it learnt before")
	})
}

func TestKeyedFunc_CostsNothingWhileTheAnswerIsTheSame(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		p := newPlans()
		k := client.KeyedFunc("plan:", p.of)
		take(t, k, "bob", 1)
		handle := k.Limiter("bob")
		assert.Same(t, handle, k.Limiter("bob"))
		require.NoError(t, client.RateLimiter("plan:bob").SetRate(t.Context(), rratelimiter.PerHour(3)))
		p.set("bob", rratelimiter.PerHour(7))
		assert.EqualValues(t, 3, take(t, k, "bob", 1).Limit, "it was set on purpose")
	})
}

// Observers tell limiters of keys with the same prefix, or with none, apart by their names.
func TestWithName_IsWhatObserversReceive(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		seen := &limitertest.Recorder{}
		client := limitertest.NewClient(t, rdb, rratelimiter.WithObserver(seen))
		requests := client.Keyed("", rratelimiter.PerMinute(10), rratelimiter.WithName("requests"))
		tokens := client.Keyed("", rratelimiter.PerMinute(1000), rratelimiter.WithName("tokens"))
		take(t, requests, "requests:{ann}", 1)
		_, err := client.TakeAll(t.Context(), requests.Claim("requests:{ann}", 1), tokens.Claim("tokens:{ann}", 50))
		require.NoError(t, err)
		r, err := tokens.Reserve(t.Context(), "tokens:{ann}", 10, 0)
		require.NoError(t, err)
		require.NoError(t, r.Settle(t.Context(), 5))
		handle := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerMinute(1)), rratelimiter.WithName("shop"))
		assert.Equal(t, "orders", handle.Name())
		limitertest.MustAcquire(t, handle, 1)
		ok, err := handle.TryAcquire(t.Context(), 1, time.Second)
		require.NoError(t, err)
		assert.False(t, ok)
		synctest.Wait()
		var names []string
		for _, d := range seen.Decisions() {
			names = append(names, d.Limiter)
		}
		assert.Equal(t, []string{"requests", "requests", "tokens", "tokens", "shop", "shop"}, names)
		assert.Equal(t, "tokens", seen.Settlements()[0].Limiter)
		assert.NotEmpty(t, seen.Callers("shop"))
	})
}
