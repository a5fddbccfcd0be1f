package faults_test

import (
	"maps"
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
	"AvailablePermits", "Peek", beyondWhatComesBack, callerGone,
}

const beyondWhatComesBack, callerGone = "TryAcquire beyond what comes back", "caller gone"

// atEnd returns the verbs that are tried under that fault when an override ends: if requests come twice, nearly all.
func atEnd(fault string) map[string]verb {
	all := verbs()
	all[beyondWhatComesBack] = asks(30, []int64{0}, try(1)...)
	maps.DeleteFunc(all, func(what string, v verb) bool {
		operation, is := strings.CutPrefix(what, "operation ")
		likeOne := v.requests != nil || v.whole || is && !limitertest.Reads[operation]
		return !slices.Contains(endNames, what) && (fault != "double" || v.waits || v.byDefault || !likeOne) ||
			strings.HasSuffix(fault, "+end") && v.requests == nil
	})
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

// The call that ends an override, one that raised the rate or lowered it, is decided by the rate that is back, and happens once,
// as any other. If the end comes between two attempts, the second finds what the first did by the rate before.
func TestOverride_EndsOnceWhateverGetsLost(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{
		"drop", "drop+drop+drop", "swallow+drop", "cut+drop", "hold", "late", "late+drop", "drop+late", "double", "drop+end", "late+end",
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			server := redistest.Shared(t)
			var all sync.WaitGroup
			for what, v := range atEnd(fault) {
				for during := range overrides {
					all.Go(func() { v.endsOverride(t, server, what, fault, during) })
				}
			}
			all.Wait()
		})
	}
}

func (v verb) endsOverride(t *testing.T, server *redistest.Server, what, fault string, during int64) {
	w, call := v.overridden(t, server, during)
	over := sync.OnceFunc(func() { w.over(t) })
	if v.scripts == nil {
		over() // it may begin by deleting the limiter
	}
	between := strings.HasSuffix(fault, "+end")
	w.meet(fault, v.scripts, func(s *lua.Script, n int) {
		if !between || s == v.scripts[0] && n == 2 {
			over()
		}
	})
	var more three
	var err error
	if between { // what the rate before allowed may be beyond the other
		more[0] = limitertest.Sum(w.AskAny(t, v.requests...))
	} else {
		more, err = call()
	}
	assert.NoError(t, err, what)
	held := v.inUse.add(more)
	w.checkSoon(t, held, what)
	w.LetGo()
	if strings.HasPrefix(what, "operation ") { // it may change the rate
		w.checkAll(t, held, what)
	} else {
		w.checkEnded(t, held, what)
	}
	if w.check != nil {
		w.check(what)
	}
}

// A server that was a replica without the last writes, and has lost the scripts, decides alike.
func TestOverride_EndsOnAnotherServer(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	for what, v := range atEnd("") {
		if what == callerGone {
			continue // what it does, it does behind its caller's back
		}
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
