package faults_test

import (
	"context"

	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// overrides are the rates of overrides of a rate of 10, and the Redisson with which each is tried.
var overrides = map[int64]string{100: limitertest.MembersOf["D2 merged"], 3: limitertest.MembersOf["C"]}

// endCase is a call on a limiter of rate 10 whose override is over.
type endCase struct {
	inUse  int64 // by another Client
	kind   rratelimiter.RateType
	script *lua.Script // that the call sends

	// open prepares the call, which returns the permits that its caller then has.
	open func(t *testing.T, w *limitertest.Wire) (call func() int64)

	requests []limitertest.Request // that the call makes, if any
}

// requested returns the case of calls that ask for permits.
func (c onceCase) requested() endCase {
	return endCase{c.inUse, c.kind, lua.Acquire, func(t *testing.T, w *limitertest.Wire) func() int64 {
		return func() int64 {
			got := w.Ask(t, c.requests...)
			assert.Equal(t, c.want, got)
			return limitertest.Sum(got)
		}
	}, c.requests}
}

func endCases() map[string]endCase {
	settles := func(used int64, opts ...rratelimiter.ReserveOption) endCase {
		return endCase{2, rratelimiter.Overall, lua.SettleReservation, func(t *testing.T, w *limitertest.Wire) func() int64 {
			r := limitertest.Reserve(t, w.RateLimiter, 4, opts...)
			return func() int64 {
				assert.NoError(t, r.Settle(t.Context(), used))
				return used
			}
		}, nil}
	}
	reads := func(script *lua.Script, read func(ctx context.Context, l *rratelimiter.RateLimiter) (int64, error)) endCase {
		return endCase{2, rratelimiter.Overall, script, func(t *testing.T, w *limitertest.Wire) func() int64 {
			return func() int64 {
				free, err := read(t.Context(), w.RateLimiter)
				assert.NoError(t, err)
				assert.EqualValues(t, 8, free)
				return 0
			}
		}, nil}
	}
	cases := map[string]endCase{
		"Settle, less": settles(1), "Settle, more": settles(6), "Settle, beyond the rate": settles(25), "Cancel": settles(0),
		"Settle, held, less": settles(1, hold), "Settle, held, more": settles(6, hold),
		"Renew": {2, rratelimiter.Overall, lua.RenewReservation, func(t *testing.T, w *limitertest.Wire) func() int64 {
			r := limitertest.Reserve(t, w.RateLimiter, 4)
			return func() int64 {
				assert.NoError(t, r.Renew(t.Context()))
				return 4
			}
		}, nil},
		"give-back": {2, rratelimiter.Overall, lua.GiveBack, func(t *testing.T, w *limitertest.Wire) func() int64 {
			d, undo, err := w.Client.Keyed("", limitertest.Hourly(10)).TakeReturnable(t.Context(), w.Name(), 3)
			require.NoError(t, err)
			require.True(t, d.Granted)
			return func() int64 {
				assert.NoError(t, undo(t.Context()))
				return 0
			}
		}, nil},
		"AvailablePermits": reads(lua.Available, func(ctx context.Context, l *rratelimiter.RateLimiter) (int64, error) {
			return l.AvailablePermits(ctx)
		}),
		"Peek": reads(lua.Peek, func(ctx context.Context, l *rratelimiter.RateLimiter) (int64, error) {
			d, err := l.Peek(ctx, 0)
			return d.Remaining, err
		}),
		"beyond what comes back": onceCase{inUse: 30, requests: try(1), want: []int64{0}}.requested(),
	}
	for _, what := range []string{
		"one granted", "one refused", "Take refused", "all that are free", "batch granted in part", "batch with Take", "batch of Reserve",
		"Reserve, held", "PER_CLIENT, one granted", "PER_CLIENT, batch granted in part",
	} {
		cases[what] = onceCases[what].requested()
	}
	return cases
}

// overridden returns a limiter whose rate is another for a while, beside permits in use, and the case's call.
func (c endCase) overridden(t *testing.T, server *redistest.Server, during int64) (w *limitertest.Wire, call func() int64) {
	t.Helper()
	cfg := rratelimiter.Config{Type: c.kind, Rate: 10, Interval: time.Hour}
	w = limitertest.NewWire(t, server, cfg, false, rratelimiter.WithRedissonVersion(overrides[during]))
	call = c.open(t, w)
	set := func(rate int64) {
		cfg.Rate = rate
		require.NoError(t, w.Other.SetRate(t.Context(), cfg, rratelimiter.For(time.Hour)))
	}
	if c.inUse > 0 {
		set(100) // there is room for more than comes back
		limitertest.MustAcquire(t, w.Other, c.inUse)
	}
	set(during)
	w.Rate = during
	return w, call
}

// endsAt lets the override be over right before the n-th call of a script comes to Redis, so that this one ends it; met is
// what the calls meet.
func endsAt(t *testing.T, w *limitertest.Wire, script *lua.Script, n int, met ...redistest.Action) {
	t.Helper()
	w.OnScript(func(s *lua.Script, call int) redistest.Action {
		if s != script {
			return redistest.Pass
		}
		if call == n {
			over(t, w)
		}
		if call <= len(met) {
			return met[call-1]
		}
		return redistest.Pass
	})
}

func over(t *testing.T, w *limitertest.Wire) {
	t.Helper()
	assert.NoError(t, w.Redis.HSet(t.Context(), w.Name(), "override", "1000 10 3600000 0").Err())
}

// checkEnded checks that the old rate is back for good, and who has permits of it.
func checkEnded(t *testing.T, w *limitertest.Wire, held int64, when string) {
	t.Helper()
	w.Rate = 10
	w.CheckHeld(t, held, when)
	assert.Equal(t, []any{"10", "3600000", nil}, w.Redis.HMGet(t.Context(), w.Name(), "rate", "interval", "override").Val(), when)
}

// eachAtEnd checks each case under each fault, with overrides that raise the rate and that lower it.
func eachAtEnd(t *testing.T, faults []string, check func(t *testing.T, c endCase, what, fault string, during int64)) {
	t.Helper()
	for _, fault := range faults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			var all sync.WaitGroup
			for what, c := range endCases() {
				for during := range overrides {
					all.Go(func() { check(t, c, what, fault, during) })
				}
			}
			all.Wait()
		})
	}
}

// The call that ends an override is decided by the rate that is back, and happens once, as any other.
func TestOverride_EndsOnceWhateverGetsLost(t *testing.T) {
	t.Parallel()
	faults := []string{"drop", "drop+drop+drop", "swallow+drop", "cut+drop", "hold", "late", "late+drop", "drop+late", "double"}
	eachAtEnd(t, faults, func(t *testing.T, c endCase, what, fault string, during int64) {
		w, call := c.overridden(t, redistest.Shared(t), during)
		endsAt(t, w, c.script, 1, actions(fault, w.Held)...)
		held := c.inUse + call()
		w.CheckHeldSoon(t, held, what)
		w.LetGo()
		checkEnded(t, w, held, what)
	})
}

// If the end comes between two attempts of a call, the second finds what the first did by the rate before.
func TestOverride_EndsBetweenAttempts(t *testing.T) {
	t.Parallel()
	eachAtEnd(t, []string{"drop", "late"}, func(t *testing.T, c endCase, what, fault string, during int64) {
		if c.requests == nil {
			return
		}
		w, _ := c.overridden(t, redistest.Shared(t), during)
		endsAt(t, w, c.script, 2, actions(fault, w.Held)...)
		held := c.inUse + limitertest.Sum(w.AskAny(t, c.requests...))
		w.CheckHeldSoon(t, held, what)
		w.LetGo()
		checkEnded(t, w, held, what)
	})
}

// A caller that goes away while its call is on its way, which ends an override, leaves the rate and the permits to others.
func TestOverride_EndsThoughItsCallerGoesAway(t *testing.T) {
	t.Parallel()
	for during := range overrides {
		for _, fault := range []string{"", "drop", "late"} {
			w, _ := endCases()["one granted"].overridden(t, redistest.Shared(t), during)
			over(t, w)
			assert.Equal(t, []int64{0}, w.CancelledInFlight(t, []int64{3}, []bool{true}, actions(fault, w.Held)...))
			w.LetGo()
			checkEnded(t, w, 2, fault)
		}
	}
}

// A server that was a replica without the last writes, and has lost the scripts, decides alike.
func TestOverride_EndsOnAnotherServer(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	for what, c := range endCases() {
		for during := range overrides {
			w, call := c.overridden(t, server, during)
			keys, dumps := []string{w.Keys.Config, w.Keys.Value, w.Keys.Permits}, make([]string, 3)
			w.OnScript(func(s *lua.Script, n int) redistest.Action {
				switch {
				case s == c.script && n == 1:
					over(t, w)
					for i, key := range keys {
						dumps[i] = w.Redis.Dump(t.Context(), key).Val()
					}
					return redistest.DropAnswer
				case s == c.script && n == 2:
					w.Proxy.Settle(t)
					assert.NoError(t, w.Redis.Unlink(t.Context(), keys...).Err())
					for i, key := range keys {
						if dumps[i] != "" {
							assert.NoError(t, w.Redis.Restore(t.Context(), key, 0, dumps[i]).Err())
						}
					}
					assert.NoError(t, w.Redis.ScriptFlush(t.Context()).Err())
				}
				return redistest.Pass
			})
			checkEnded(t, w, c.inUse+call(), what)
		}
	}
}

// So it does if the call is sent twice, whatever it asks for.
func TestOverride_EndsOnceThoughTheCallComesTwice(t *testing.T) {
	t.Parallel()
	for during, version := range overrides {
		for what, c := range twiceCases {
			w, _ := endCase{inUse: c.inUse, open: func(*testing.T, *limitertest.Wire) func() int64 { return nil }}.overridden(t, redistest.Shared(t), during)
			over(t, w)
			w.Rate = 10
			w.OnScript(func(*lua.Script, int) redistest.Action { return redistest.Duplicate })
			require.NoError(t, c.call(t.Context(), t, w), what)
			assert.Equal(t, limitertest.Hourly(w.Rate), limitertest.ConfigOf(t, w.Other), what)
			w.CheckHeld(t, c.held, what+", beside "+version)
		}
	}
}

// So it does for several limiters that one call asks.
func TestOverride_EndsOnceForSeveralLimiters(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"drop", "swallow+drop", "late", "double"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			for during, version := range overrides {
				w := newBundleInUse(t, three{2, 0, 1}, version)
				for i, l := range w.others {
					cfg := limitertest.Hourly(during)
					cfg.Type = []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient, rratelimiter.Overall}[i]
					require.NoError(t, l.SetRate(t.Context(), cfg, rratelimiter.For(time.Hour)))
					over(t, w.each[i])
				}
				w.On(lua.AcquireAll, actions(fault, w.Held)...)
				w.mustTryAll(t, 4)
				w.LetGo()
				w.checkAll(t, three{6, 4, 5}, "beside "+version)
				for i, l := range w.others {
					assert.EqualValues(t, 10, limitertest.ConfigOf(t, l).Rate, i)
				}
			}
		})
	}
}
