package faults_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestAcquireWithoutAnyAnswer(t *testing.T) {
	t.Parallel()
	type row struct {
		action redistest.Action
		held   three // each attempt that arrives counts once
	}
	limitertest.Each(t, map[string]row{
		"dropped": {redistest.DropAnswer, three{3 + 2 + 2 + 4, 4, 4}},
		"cut":     {redistest.Cut, three{}},
	}, func(t *testing.T, tt row) {
		w := newBundle(t, 20, "4.7.0")
		w.OnScript(func(s *lua.Script, _ int) redistest.Action {
			if s == lua.Acquire || s == lua.AcquireAll {
				return tt.action
			}
			return redistest.Pass
		})
		ok, err := w.TryAcquire(t.Context(), 3, 0)
		require.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
		assert.False(t, ok)
		require.ErrorIs(t, limitertest.Second(w.Take(t.Context(), 2)), rratelimiter.ErrUnknownOutcome)
		require.ErrorIs(t, w.Acquire(t.Context(), 2), rratelimiter.ErrUnknownOutcome)
		assert.LessOrEqual(t, w.Sent(lua.Acquire), 3*5)
		require.ErrorIs(t, limitertest.Second(w.tryAll(t.Context(), 4, 0)), rratelimiter.ErrUnknownOutcome)
		assert.LessOrEqual(t, w.Sent(lua.AcquireAll), 5)
		w.checkAll(t, tt.held, "without an answer")

		w.On(nil)
		limitertest.MustAcquire(t, w.RateLimiter, 1)
	})
}

func TestScriptFlush_LostAnswersCountOnce(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	for _, tt := range []struct {
		fault  string // EVALSHA, EVAL, EVALSHA ...
		forget int    // before that call, too
	}{{"", 0}, {"pass+drop", 0}, {"drop", 0}, {"pass+cut+pass+drop", 0}, {"pass+drop", 3}, {"pass+drop+pass+drop", 3}} {
		t.Run(fmt.Sprint(tt.fault, ", forgotten ", tt.forget), func(t *testing.T) {
			w := limitertest.NewWire(t, server, limitertest.Hourly(10), false)
			limitertest.MustAcquire(t, w.Other, 3)
			forget := func() { assert.NoError(t, w.Redis.ScriptFlush(t.Context()).Err()) }
			met := actions(tt.fault, nil)
			for _, requests := range [][]limitertest.Request{try(2), {limitertest.TryFor(1), limitertest.TryFor(9), limitertest.TakeFor(1)}} {
				forget()
				w.OnScript(func(s *lua.Script, n int) redistest.Action {
					if s != lua.Acquire {
						return redistest.Pass
					}
					if n == tt.forget {
						forget()
					}
					if n <= len(met) {
						return met[n-1]
					}
					return redistest.Pass
				})
				assert.EqualValues(t, 2, limitertest.Sum(w.Ask(t, requests...)))
			}
			w.CheckHeld(t, 7, "acquired")

			forget()
			require.NoError(t, w.Release(t.Context(), 3), "NOSCRIPT says that it did not run")
			w.CheckHeld(t, 4, "released")
			forget()
			w.On(lua.Release, redistest.Pass, redistest.DropAnswer)
			require.ErrorIs(t, w.Release(t.Context(), 1), rratelimiter.ErrUnknownOutcome)
			w.CheckHeld(t, 3, "released once")
		})
	}
}

// A lost answer to a joint call that carries its script, because the server did not
// know it, costs its callers one attempt, and those who flew with it nothing.
func TestJointCall_LostWithScriptCostsOneAttempt(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]redistest.Action{"no answer": redistest.Swallow, "a broken connection": redistest.DropAnswer} {
		for _, punctual := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ContextTimeoutEnabled %v", name, punctual), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { loseJointCall(t, lost, punctual) })
			})
		}
	}
}

func loseJointCall(t *testing.T, lost redistest.Action, punctual bool) {
	t.Helper()
	direct, m := redistest.Mini(t)
	proxy := redistest.MiniProxy(t, m)
	c := limitertest.NewClient(t, proxy.Client(t, &redistest.Options{ContextTimeoutEnabled: punctual}))
	const rate, callers = 10, 40
	limiters := make([]*rratelimiter.RateLimiter, callers)
	for i := range limiters {
		limiters[i] = c.RateLimiter(fmt.Sprint("limiter", i), rratelimiter.WithDefault(limitertest.Every(rate, time.Hour)), rratelimiter.WithExact())
		limitertest.MustAcquire(t, limiters[i], 1)
		limitertest.MustAcquire(t, limiters[i], 1) // its short answer says that the limiter is shared
	}
	var sent, losses atomic.Int32
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		switch {
		case sent.Add(1) <= 2: // while these two are under way the others gather
			return redistest.Pass.After(10 * time.Millisecond)
		case c.Name() == "eval" && c.Args[1] == lua.AcquireMany.Source && losses.Add(1) == 1:
			return lost
		}
		return redistest.Pass
	})
	var wg sync.WaitGroup
	start := time.Now()
	for i, l := range limiters {
		wg.Go(func() {
			if i%10 == 9 { // figures are not asked for together
				d, err := l.Take(t.Context(), 1)
				assert.NoError(t, err)
				assert.True(t, d.Granted)
				assert.Less(t, time.Since(start), 100*time.Millisecond)
				return
			}
			ok, err := l.TryAcquire(t.Context(), 1, 0)
			assert.NoError(t, err)
			assert.True(t, ok)
			assert.Less(t, time.Since(start), 1500*time.Millisecond)
		})
		synctest.Wait()
	}
	wg.Wait()
	require.Positive(t, losses.Load())
	for _, l := range limiters {
		assert.EqualValues(t, 3, limitertest.InUse(t, direct, limitertest.KeysOf(l).Permits))
		assert.EqualValues(t, rate-3, limitertest.Available(t, l))
	}
}
