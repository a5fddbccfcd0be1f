package faults_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A fault is what the attempts of a call meet, in turn: see actions.
var (
	// With these a request reaches Redis at most once for each attempt, and before the next.
	lossy = []string{"", "drop", "drop+drop+drop", "swallow", "swallow+drop", "cut", "cut+drop", "drop+cut", "hold", "hold+hold"}
	// With these it does so after it was repeated.
	tardy = []string{"late", "late+late", "late+drop", "drop+late"}
)

// actions returns what the words of a fault stand for; held ends what is held back.
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
func try(permits ...int64) (wishes []limitertest.Wish) {
	for _, n := range permits {
		wishes = append(wishes, limitertest.TryFor(n))
	}
	return wishes
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
	ok, err := w.Client.TryAcquireAll(ctx, permits, timeout, w.own...)
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

// source is a source of random numbers for several goroutines.
type source struct {
	mu  sync.Mutex
	pcg *rand.PCG
}

func (s *source) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pcg.Uint64()
}

// storm plays rounds on several lanes at once. A lane begins with a draw of its own, and
// of a release of Redisson.
func storm(t *testing.T, lanes uint64, rounds int, begin func(lane uint64, draw *rand.Rand, version string) (round func() bool)) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	versions := slices.Sorted(maps.Values(limitertest.MembersOf))
	var wg sync.WaitGroup
	for lane := range lanes {
		wg.Go(func() {
			draw := rand.New(&source{pcg: rand.NewPCG(seed, lane)})
			round := begin(lane, draw, versions[draw.IntN(len(versions))])
			for n := range rounds {
				if !round() {
					t.Errorf("lane %d, round %d of seed %d", lane, n, seed)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Callers ask in random batches, go away and release, while random calls of the scripts
// meet random faults. After each round permits in use are those that callers hold.
func TestStorm(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]string{
		"of lost answers":  "drop+drop+cut+cut+swallow+hold",
		"of late requests": "drop+cut+late+late",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storm(t, 8, 10, func(lane uint64, draw *rand.Rand, version string) func() bool {
				cfg := limitertest.Hourly(10 + draw.Int64N(30))
				if lane%4 == 3 {
					cfg.Type = rratelimiter.PerClient
				}
				w := limitertest.NewWire(t, redistest.Shared(t), cfg, lane%4 == 2, rratelimiter.WithRedissonVersion(version))
				var held int64
				return func() bool { return stormRound(t, w, draw, &held, faults) }
			})
		})
	}
}

// meetFaults has calls of the scripts meet faults, of which letGo ends those that hold an
// answer back, and the returned context end at any of them, or by letGo.
func meetFaults(t *testing.T, w *limitertest.Wire, draw *rand.Rand, faults string) (ended context.Context, letGo func()) {
	ctx, cancel := context.WithCancel(t.Context())
	held := make(chan struct{})
	kinds := actions(faults, held)
	left := 4                                      // of five attempts, so that none meets faults alone
	draw = rand.New(rand.NewPCG(draw.Uint64(), 0)) // for the proxy's goroutines
	w.OnScript(func(s *lua.Script, _ int) redistest.Action {
		if draw.IntN(8) == 0 {
			cancel()
		}
		if s != lua.AcquireAll && s != lua.Acquire && s != lua.GiveBack || left == 0 || draw.IntN(3) != 0 {
			return redistest.Pass
		}
		left--
		return kinds[draw.IntN(len(kinds))]
	})
	return ctx, sync.OnceFunc(func() {
		cancel()
		close(held)
	})
}

// leaving ends after a while, as callers' patience: a timeout may end before answers come again.
func leaving() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(limitertest.Outlasts, cancel)
	return ctx
}

func leaves(permits int64) limitertest.Wish {
	return func(w *limitertest.Wire) (int64, error) {
		ok, err := w.TryAcquire(leaving(), permits, time.Hour)
		return limitertest.Counted(permits, ok, err)
	}
}

// stormRound makes some requests under faults, releases some of what is held, and checks
// that what is in use is what is held.
func stormRound(t *testing.T, w *limitertest.Wire, draw *rand.Rand, holding *int64, faults string) bool {
	ctx, letGo := meetFaults(t, w, draw, faults)
	defer letGo()
	var wishes []limitertest.Wish
	for range 1 + draw.IntN(5) {
		permits := 1 + draw.Int64N(6)
		wishes = append(wishes, []limitertest.Wish{
			limitertest.TakeFor(permits),
			leaves(permits),
			func(w *limitertest.Wire) (int64, error) {
				ok, err := w.TryAcquire(ctx, permits, 0)
				return limitertest.Counted(permits, ok, err)
			},
			limitertest.TryFor(permits),
		}[draw.IntN(4)])
	}
	*holding += limitertest.Sum(w.Ask(t, wishes...))
	if draw.IntN(2) == 0 {
		letGo()
	}
	if *holding > 0 && draw.IntN(2) == 0 {
		back := 1 + draw.Int64N(*holding)
		if !assert.NoError(t, w.Release(t.Context(), back)) {
			return false
		}
		*holding -= back
	}
	letGo()
	if !w.CheckHeld(t, *holding, fmt.Sprintf("a round with %d requests", len(wishes))) {
		return false
	}
	// A give-back that has run may have lost its answer: its repeats are no next round's.
	over := func() bool { return engine.Of(w.Client).Active() == 0 }
	return assert.Eventually(t, over, time.Minute, time.Millisecond, "calls of a round are still under way")
}

func TestStormOfAll(t *testing.T) {
	t.Parallel()
	storm(t, 6, 8, func(_ uint64, draw *rand.Rand, version string) func() bool {
		w := newBundle(t, 10+draw.Int64N(30), version)
		var held three
		return func() bool { return w.stormRound(t, draw, &held) }
	})
}

func (w *bundle) stormRound(t *testing.T, draw *rand.Rand, holding *three) bool {
	ctx, letGo := meetFaults(t, w.Wire, draw, "drop+drop+cut+swallow+late+hold")
	defer letGo()
	got := make([]three, 1+draw.IntN(8))
	var wg sync.WaitGroup
	for i := range got {
		permits, one, kind := 1+draw.Int64N(6), draw.IntN(3), draw.IntN(4)
		wg.Go(func() {
			var all int64
			var err error
			switch kind {
			case 0:
				all, err = w.tryAll(ctx, permits, 0)
			case 1:
				all, err = w.tryAll(leaving(), permits, time.Hour)
			case 2:
				all, err = w.tryAll(context.Background(), permits, 0)
			default:
				ok, tryErr := w.own[one].TryAcquire(ctx, permits, 0)
				got[i][one], err = limitertest.Counted(permits, ok, tryErr)
			}
			if !errors.Is(err, context.Canceled) {
				assert.NoError(t, err)
			}
			got[i] = got[i].plus(all)
		})
	}
	wg.Wait()
	for _, granted := range got {
		*holding = holding.add(granted)
	}
	if draw.IntN(2) == 0 {
		letGo()
	}
	back := draw.IntN(2) == 0
	for i, l := range w.own {
		if !back || holding[i] == 0 {
			continue
		}
		n := 1 + draw.Int64N(holding[i])
		if !assert.NoError(t, l.Release(t.Context(), n)) {
			return false
		}
		holding[i] -= n
	}
	letGo()
	return w.checkAll(t, *holding, "a round")
}
