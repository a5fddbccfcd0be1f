package faults_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
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
)

// actions returns what the words of a fault stand for; held releases the commands held back.
func actions(fault string, held <-chan struct{}) []redistest.Action {
	var all []redistest.Action
	for _, word := range strings.FieldsFunc(fault, func(r rune) bool { return r == '+' }) {
		action, known := map[string]redistest.Action{
			"pass": redistest.Pass, "drop": redistest.DropAnswer, "swallow": redistest.Swallow, "cut": redistest.Cut,
			"double": redistest.Duplicate, "hold": redistest.Pass.When(held), "late": redistest.Late.When(held),
		}[word]
		if !known {
			panic("no such fault: " + word)
		}
		all = append(all, action)
	}
	return all
}

// underFaults checks each case under each fault and with each layout of members. What
// waits takes long: it is checked with all layouts at once.
func underFaults[C any](
	t *testing.T, faults []string, cases, waiting map[string]C, check func(t *testing.T, c C, what, fault, version string),
) {
	t.Helper()
	for _, fault := range faults {
		name := cmp.Or(fault, "no fault")
		eachLayout(t, name, func(t *testing.T, version string) {
			var wg sync.WaitGroup
			for what, c := range cases {
				wg.Go(func() { check(t, c, what, fault, version) })
			}
			wg.Wait()
		})
		t.Run(name+", waiting", func(t *testing.T) {
			t.Parallel()
			var wg sync.WaitGroup
			for what, c := range waiting {
				for layout, version := range limitertest.MembersOf {
					wg.Go(func() { check(t, c, what+", "+layout, fault, version) })
				}
			}
			wg.Wait()
		})
	}
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

func newWire(t testing.TB, rate int64, opts ...rratelimiter.Option) *limitertest.Wire {
	t.Helper()
	return limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(rate), false, opts...)
}

func newWireInUse(t testing.TB, rate, inUse int64, version string) *limitertest.Wire {
	t.Helper()
	w := newWire(t, rate, rratelimiter.WithRedissonVersion(version))
	if inUse > 0 {
		limitertest.MustAcquire(t, w.Other, inUse)
	}
	return w
}

// try returns a TryAcquire for each.
func try(permits ...int64) (requests []limitertest.Request) {
	for _, n := range permits {
		requests = append(requests, limitertest.TryFor(n))
	}
	return requests
}

// three are permits of the limiters of a bundle.
type three [3]int64

func (a three) add(b three) three { return three{a[0] + b[0], a[1] + b[1], a[2] + b[2]} }

func (a three) minus(b three) three { return three{a[0] - b[0], a[1] - b[1], a[2] - b[2]} }

func (a three) plus(n int64) three { return a.add(three{n, n, n}) }

// A bundle is a wire to three limiters that share a hash tag.
type bundle struct {
	*limitertest.Wire // to the first

	each        []*limitertest.Wire         // what CheckHeld needs of each
	own, others []*rratelimiter.RateLimiter // through the proxy, and another Client's, past it
}

// newBundle returns limiters of that rate; the second is of type PerClient, and the
// third is set up by its first use.
func newBundle(t testing.TB, rate int64, version string) *bundle {
	t.Helper()
	opts := []rratelimiter.Option{rratelimiter.WithRedissonVersion(version), rratelimiter.WithClientID("the-client")}
	w := &bundle{Wire: limitertest.NewWireOf(t, redistest.Shared(t), limitertest.Hourly(rate), false, 20, opts...)}
	other := limitertest.NewClient(t, w.Redis, opts...)
	byDefault := rratelimiter.WithDefault(limitertest.Hourly(rate))
	for i, name := range []string{w.Name(), "{" + w.Name() + "}:own", "{" + w.Name() + "}:default"} {
		keys, l := redisson.KeysOf(name, "the-client"), w.Client.RateLimiter(name)
		switch i {
		case 1:
			limitertest.MustTrySetRate(t, other.RateLimiter(name), limitertest.PerClient(rate, time.Hour))
			keys.Value, keys.Permits = keys.ClientValue, keys.ClientPermits
		case 2:
			l = w.Client.RateLimiter(name, byDefault)
		}
		w.own, w.others = append(w.own, l), append(w.others, other.RateLimiter(name, byDefault))
		w.each = append(w.each, &limitertest.Wire{RateLimiter: l, Proxy: w.Proxy, Redis: w.Redis, Keys: keys, Rate: rate})
	}
	return w
}

// newBundleInUse is newBundle of rate 10 with permits that another Client has taken.
func newBundleInUse(t testing.TB, inUse three, version string) *bundle {
	t.Helper()
	w := newBundle(t, 10, version)
	for i, n := range inUse {
		if n > 0 {
			limitertest.MustAcquire(t, w.others[i], n)
		}
	}
	return w
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

// leaving ends after a while, as callers' patience: a timeout may end before answers come again.
func leaving() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(limitertest.Outlasts, cancel)
	return ctx
}

func leaves(permits int64) limitertest.Request {
	return func(w *limitertest.Wire) (int64, error) {
		ok, err := w.TryAcquire(w.Context(leaving()), permits, time.Hour)
		return limitertest.Counted(permits, ok, err)
	}
}
