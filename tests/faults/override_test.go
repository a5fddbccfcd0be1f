package faults_test

import (
	"slices"
	"strings"
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

// endNames are the verbs that are tried under all faults when an override ends.
var endNames = []string{
	"TryAcquire", "TryAcquire, refused", "TryAcquire, PER_CLIENT", "Take, refused", "TakeUpTo, some of it", "Reserve, held",
	"batch granted in part", "batch with Take", "batch of Reserve", "batch in part, PER_CLIENT", "TryAcquireAll", "undo",
	"Cancel", "Settle, less", "Settle, more", "Settle, beyond the rate", "Settle, held, less", "Settle, held, more", "Renew",
	"AvailablePermits", "Peek",
}

func atEnd() map[string]verb {
	all := map[string]verb{"beyond what comes back": asks(30, []int64{0}, try(1)...)}
	for name, v := range verbs() {
		if slices.Contains(endNames, name) {
			all[name] = v
		}
	}
	return all
}

// overridden returns limiters whose rate is another for a while, beside permits in use, and the verb's call.
func (v verb) overridden(t *testing.T, server *redistest.Server, during int64) (w *bundle, call func() (three, error)) {
	t.Helper()
	w = v.wires(t, server, 10, overrides[during])
	call = v.begin(t, w)
	set := func(rate int64) {
		for i, l := range w.others {
			cfg := rratelimiter.Config{Type: v.kind, Rate: rate, Interval: time.Hour}
			if i == 1 {
				cfg.Type = rratelimiter.PerClient
			}
			require.NoError(t, l.SetRate(t.Context(), cfg, rratelimiter.For(time.Hour)))
			w.each[i].Rate = rate
		}
	}
	set(100) // there is room for more than comes back
	w.take(t, v.inUse)
	set(during)
	return w, call
}

// over lets the override of each limiter be over.
func (w *bundle) over(t *testing.T) {
	t.Helper()
	for _, l := range w.own {
		assert.NoError(t, w.Redis.HSet(t.Context(), l.Name(), "override", "1000 10 3600000 0").Err())
	}
}

// checkEnded checks that the old rate is back for good, and who has permits of it.
func (w *bundle) checkEnded(t *testing.T, held three, when string) {
	t.Helper()
	for _, each := range w.each {
		each.Rate = 10
	}
	w.checkAll(t, held, when)
	for _, l := range w.own {
		assert.Equal(t, []any{"10", "3600000", nil}, w.Redis.HMGet(t.Context(), l.Name(), "rate", "interval", "override").Val(), when)
	}
}

// eachAtEnd checks each verb under each fault, with overrides that raise the rate and that lower it. Right before its n-th
// call comes to Redis the override is over, so that this one ends it.
func eachAtEnd(t *testing.T, n int, faults []string, call func(t *testing.T, v verb, w *bundle, call func() (three, error)) three) {
	t.Helper()
	for _, fault := range faults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			server := redistest.Shared(t)
			var all sync.WaitGroup
			for what, v := range atEnd() {
				if n > 1 && v.requests == nil {
					continue
				}
				for during := range overrides {
					all.Go(func() {
						w, do := v.overridden(t, server, during)
						met := actions(fault, w.Held)
						w.OnScript(func(s *lua.Script, call int) redistest.Action {
							if s == v.scripts[0] && call == n {
								w.over(t)
							}
							if s == v.scripts[0] && call <= len(met) {
								return met[call-1]
							}
							return redistest.Pass
						})
						held := v.inUse.add(call(t, v, w, do))
						w.checkSoon(t, held, what)
						w.LetGo()
						w.checkEnded(t, held, what)
					})
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
	eachAtEnd(t, 1, faults, func(t *testing.T, _ verb, _ *bundle, call func() (three, error)) three {
		more, err := call()
		assert.NoError(t, err)
		return more
	})
}

// If the end comes between two attempts of a call, the second finds what the first did by the rate before.
func TestOverride_EndsBetweenAttempts(t *testing.T) {
	t.Parallel()
	eachAtEnd(t, 2, []string{"drop", "late"}, func(t *testing.T, v verb, w *bundle, _ func() (three, error)) three {
		return three{limitertest.Sum(w.AskAny(t, v.requests...))}
	})
}

// A caller that goes away while its call is on its way, which ends an override, leaves the rate and the permits to others.
func TestOverride_EndsThoughItsCallerGoesAway(t *testing.T) {
	t.Parallel()
	for during := range overrides {
		for _, fault := range []string{"", "drop", "late"} {
			v := verbs()["caller gone"]
			w, call := v.overridden(t, redistest.Shared(t), during)
			w.over(t)
			w.meet(fault, v.scripts)
			require.NoError(t, limitertest.Second(call()))
			w.LetGo()
			w.checkEnded(t, three{2}, fault)
		}
	}
}

// A server that was a replica without the last writes, and has lost the scripts, decides alike.
func TestOverride_EndsOnAnotherServer(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	for what, v := range atEnd() {
		for during := range overrides {
			w, call := v.overridden(t, server, during)
			var keys, dumps []string
			for _, each := range w.each {
				keys = append(keys, each.Keys.Config, each.Keys.Value, each.Keys.Permits)
			}
			w.OnScript(func(s *lua.Script, n int) redistest.Action {
				switch {
				case s == v.scripts[0] && n == 1:
					w.over(t)
					for _, key := range keys {
						dumps = append(dumps, w.Redis.Dump(t.Context(), key).Val())
					}
					return redistest.DropAnswer
				case s == v.scripts[0] && n == 2:
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
			more, err := call()
			require.NoError(t, err, what)
			w.checkEnded(t, v.inUse.add(more), what)
		}
	}
}

// So it does if the call is sent twice, whatever it asks for.
func TestOverride_EndsOnceThoughTheCallComesTwice(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for during, version := range overrides {
		for what, v := range verbs() {
			if operation := strings.TrimPrefix(what, "operation "); v.waits || v.byDefault ||
				v.requests == nil && !v.whole && (operation == what || limitertest.Reads[operation]) {
				continue
			}
			w, call := v.overridden(t, server, during)
			w.over(t)
			w.Rate = 10
			w.meet("double", nil)
			more, err := call()
			require.NoError(t, err, what)
			w.checkAll(t, v.inUse.add(more), what+", beside "+version)
			if w.check != nil {
				w.check(what)
			}
		}
	}
}
