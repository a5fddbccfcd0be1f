package faults_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A fault is what the attempts of a call meet, in turn: see actions.
var (
	// With these a request reaches Redis at most once for each attempt, and before the next.
	lossy = []string{"", "drop", "drop+drop+drop", "swallow", "swallow+drop", "cut", "cut+drop", "drop+cut", "hold", "hold+hold"}
	// With these it does so after it was repeated.
	tardy = []string{"late", "late+late", "late+drop", "drop+late"}
	// With these it does so twice for each attempt, whichever answer is heard.
	twice = []string{"double", "double, last"}
)

// kinds are clients that wait for their answers as long as a read may take, and that end it with the caller's deadline.
var kinds = map[string]redistest.Options{"by default": {}, "ContextTimeoutEnabled": {ContextTimeoutEnabled: true}}

// actions returns what the words of a fault stand for; held releases the commands held back.
func actions(fault string, held <-chan struct{}) []redistest.Action {
	var all []redistest.Action
	for _, word := range strings.FieldsFunc(fault, func(r rune) bool { return r == '+' }) {
		action, known := map[string]redistest.Action{
			"pass": redistest.Pass, "end": redistest.Pass, "drop": redistest.DropAnswer, "swallow": redistest.Swallow, "cut": redistest.Cut,
			"double": redistest.Duplicate, "double, last": redistest.DuplicateLast, "hold": redistest.Pass.When(held), "late": redistest.Late.When(held),
		}[word]
		if !known {
			panic("no such fault: " + word)
		}
		all = append(all, action)
	}
	return all
}

// eachLayout runs test with a release of Redisson for each layout.
func eachLayout(t *testing.T, name string, test func(t *testing.T, version string)) {
	t.Helper()
	for layout, version := range limitertest.MembersOf {
		t.Run(name+", "+layout, func(t *testing.T) {
			t.Parallel()
			test(t, version)
		})
	}
}

// newWire returns a limiter of that rate, of which another Client has taken some permits.
func newWire(t testing.TB, rate, inUse int64) *limitertest.Wire {
	t.Helper()
	w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(rate), false)
	if inUse > 0 {
		limitertest.MustAcquire(t, w.Other, inUse)
	}
	return w
}

// three are permits of the limiters of a bundle.
type three [3]int64

func (a three) add(b three) three { return three{a[0] + b[0], a[1] + b[1], a[2] + b[2]} }

func (a three) minus(b three) three { return three{a[0] - b[0], a[1] - b[1], a[2] - b[2]} }

// A bundle is a wire to one limiter, or to three that share a hash tag.
type bundle struct {
	*limitertest.Wire // to the first

	each        []*limitertest.Wire         // what CheckHeld needs of each
	own, others []*rratelimiter.RateLimiter // through the proxy, and another Client's, past it

	runs  bool              // what is asked reaches Redis
	check func(what string) // what else must hold of it, if anything
}

// newBundle returns three limiters of that rate.
func newBundle(t testing.TB, rate int64, version string) *bundle {
	t.Helper()
	return verb{several: true}.wires(t, redistest.Shared(t), rate, version)
}

// wires returns the verb's limiters. Of several the second is of type PerClient, and the third is set up by its first use.
func (v verb) wires(t testing.TB, server *redistest.Server, rate int64, version string) *bundle {
	t.Helper()
	connections := 3
	if v.several {
		connections = 20
	}
	cfg := rratelimiter.Config{Type: v.kind, Rate: rate, Interval: time.Hour}
	wire := limitertest.NewWireOf(t, server, cfg, v.byDefault, connections, rratelimiter.WithRedissonVersion(version))
	w := &bundle{Wire: wire, runs: true}
	add := func(each *limitertest.Wire, other *rratelimiter.RateLimiter) {
		w.each, w.own, w.others = append(w.each, each), append(w.own, each.RateLimiter), append(w.others, other)
	}
	add(wire, wire.Other)
	if !v.several {
		return w
	}
	byDefault := rratelimiter.WithDefault(limitertest.Hourly(rate))
	for _, name := range []string{"{" + w.Name() + "}:own", "{" + w.Name() + "}:default"} {
		keys, l, other := redisson.KeysOf(name, limitertest.WireID), w.Client.RateLimiter(name, byDefault), w.OtherClient.RateLimiter(name, byDefault)
		if len(w.each) == 1 {
			l = w.Client.RateLimiter(name)
			limitertest.MustTrySetRate(t, other, limitertest.PerClient(rate, time.Hour))
			keys.Value, keys.Permits = keys.ClientValue, keys.ClientPermits
		}
		add(&limitertest.Wire{RateLimiter: l, Proxy: w.Proxy, Redis: w.Redis, Keys: keys, Rate: rate}, other)
	}
	return w
}

// take lets the other Client take permits.
func (w *bundle) take(t testing.TB, permits three) {
	t.Helper()
	for i, n := range permits {
		if n > 0 {
			limitertest.MustAcquire(t, w.others[i], n)
		}
	}
}

// meet lets the calls of scripts, or of all, meet a fault from now on. Each calls before, if there is one.
func (w *bundle) meet(fault string, scripts []*lua.Script, before ...func(s *lua.Script, n int)) {
	met := actions(fault, w.Held)
	w.OnScript(func(s *lua.Script, n int) redistest.Action {
		for _, f := range before {
			f(s, n)
		}
		switch {
		case slices.Contains(twice, fault):
			return met[0]
		case n <= len(met) && (scripts == nil || slices.Contains(scripts, s)):
			return met[n-1]
		}
		return redistest.Pass
	})
}

// release releases permits of each limiter, 0 for none.
func release(t testing.TB, limiters []*rratelimiter.RateLimiter, permits three) {
	t.Helper()
	for i, n := range permits {
		if n > 0 {
			require.NoError(t, limiters[i].Release(t.Context(), n))
		}
	}
}

func (w *bundle) tryAll(ctx context.Context, permits int64, timeout time.Duration) (int64, error) {
	ok, err := w.Client.TryAcquireAll(ctx, timeout, limitertest.Claims(permits, w.own...)...)
	return limitertest.Counted(permits, ok, err)
}

func (w *bundle) mustTryAll(t testing.TB, permits int64) {
	t.Helper()
	got, err := w.tryAll(t.Context(), permits, 0)
	require.NoError(t, err)
	require.Equal(t, permits, got)
}

func (w *bundle) checkAll(t testing.TB, held three, when string) bool {
	t.Helper()
	ok := true
	for i, each := range w.each {
		ok = each.CheckHeld(t, held[i], fmt.Sprintf("%s, limiter %d", when, i)) && ok
	}
	return ok
}

// checkSoon is checkAll while requests or answers are held back, of permits in use.
func (w *bundle) checkSoon(t testing.TB, held three, when string) {
	t.Helper()
	for i, each := range w.each {
		assert.Eventually(t, func() bool {
			return limitertest.InUse(t, w.Redis, each.Keys.Permits) == held[i]
		}, time.Minute, time.Millisecond, "%s: permits in use of limiter %d are not %d", when, i, held[i])
	}
}

// sent returns how many calls the Client has sent for its callers.
func (w *bundle) sent() (calls int) {
	for _, s := range lua.All() {
		if s != lua.Merge && s != lua.NoteClient {
			calls += w.Sent(s)
		}
	}
	return calls
}

func (w *bundle) claims(permits three, opts ...rratelimiter.ReserveOption) []rratelimiter.Claim {
	claims := make([]rratelimiter.Claim, len(permits))
	for i, n := range permits {
		claims[i] = w.own[i].Claim(n, opts...)
	}
	return claims
}

// leaving ends after a while, as callers' patience: a timeout may end before answers come again.
func leaving() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(limitertest.Outlasts, cancel)
	return ctx
}
