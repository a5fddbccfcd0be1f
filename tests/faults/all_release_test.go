package faults_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

func TestThoseThatWaitForAllAreWokenByARelease(t *testing.T) {
	t.Parallel()
	for place := range 2 {
		synctest.Test(t, func(t *testing.T) {
			s, f := limitertest.NewFamilyScene(t, limitertest.Every(2, time.Second), limitertest.Every(2, time.Second))
			limitertest.MustAcquire(t, s.Rival.RateLimiter(f.Limiters[place].Name()), 2)
			c := s.TryAll(t.Context(), f, 1, limitertest.Forever)
			s.Until(300 * time.Millisecond)
			require.NoError(t, s.Client.RateLimiter(f.Limiters[place].Name()).Release(t.Context(), 1))
			s.Until(limitertest.Forever)
			assert.Equal(t, "true at 300ms", c.Outcome())
		})
	}
}

// A Release of the same Client waits for the repeat, and an attempt for the
// Release that came before it.
func TestReleaseWaitsForAllThatAreInDoubt(t *testing.T) {
	t.Parallel()
	w := newBundleWire(t, 10, "4.7.0")
	got, err := w.tryAll(t.Context(), 4, 0)
	require.NoError(t, err)
	require.EqualValues(t, 4, got)
	var released sync.WaitGroup
	w.OnScript(func(s *lua.Script, n int) redistest.Action {
		switch {
		case s == lua.AcquireAll && n == 1:
			for _, l := range w.family.Limiters {
				released.Go(func() { assert.NoError(t, l.Release(context.Background(), 4)) })
			}
			return redistest.DropAnswer
		case s == lua.AcquireAll && n == 2:
			assert.Zero(t, w.Sent(lua.Release))
		}
		return redistest.Pass
	})
	got, err = w.tryAll(t.Context(), 5, 0)
	require.NoError(t, err)
	assert.EqualValues(t, 5, got)
	released.Wait()
	assert.Equal(t, 3, w.Sent(lua.Release))
	w.checkAll(t, [3]int64{5, 5, 5}, "released")
}

// An attempt does not wait for a Release whose caller has gone.
func TestAnAttemptForAllBehindAReleaseThatIsWithdrawn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(9, time.Hour), limitertest.Every(9, time.Hour))
		require.NoError(t, s.Mini.ScriptLoad(t.Context(), lua.AcquireAll.Source).Err())
		letGo := s.Hold(t, lua.AcquireAll, 1)
		first := s.TryAll(t.Context(), f, 1, 0)
		ctx, cancel := context.WithCancel(t.Context())
		release := s.Go(func() (bool, error) { return false, f.Limiters[1].Release(ctx, 1) })
		second := s.TryAll(t.Context(), f, 2, 0)
		s.Until(100 * time.Millisecond)
		assert.Equal(t, "waits", release.Outcome())
		assert.Equal(t, "waits", second.Outcome())
		cancel()
		synctest.Wait()
		release.RequireEnd(t, context.Canceled, 100*time.Millisecond)
		assert.Equal(t, "true at 100ms", second.Outcome())
		s.Until(200 * time.Millisecond)
		letGo()
		assert.Equal(t, "true at 200ms", first.Outcome())
		s.CheckAll(t, f, []int64{9, 9}, []int64{3, 3})
	})
}

// Releases without pause, and attempts without pause: neither holds up the other
// for good, nor do callers who go away.
func TestReleasesAndAttemptsForAllTakeTurns(t *testing.T) {
	t.Parallel()
	w := newBundleWire(t, 10, "4.7.0")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var others sync.WaitGroup
	for i := range 4 {
		l := w.family.Limiters[i%3]
		others.Go(func() {
			for ctx.Err() == nil {
				short, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(2000))*time.Microsecond)
				_ = l.Release(short, 1)
				cancel()
			}
		})
		others.Go(func() {
			for ctx.Err() == nil {
				short, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(2000))*time.Microsecond)
				_, _ = w.tryAll(short, 1, 0)
				cancel()
			}
		})
	}
	for range 50 {
		_, err := w.tryAll(t.Context(), 1, 0)
		require.NoError(t, err)
		require.NoError(t, w.family.Limiters[1].Release(t.Context(), 1))
	}
	stop()
	others.Wait()
	require.NoError(t, w.Client.Close(t.Context()))
	w.Proxy.Settle(t)
	for _, each := range w.each {
		value, _ := limitertest.StoredValue(t, w.Redis, each.Keys.Value)
		assert.EqualValues(t, 10, value+limitertest.InUse(t, w.Redis, each.Keys.Permits))
	}
}

// Random attempts, Releases and departures meet random faults; after each round
// every limiter has in use what callers hold of it.
func TestStormOfAll(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	for lane := range uint64(6) {
		wg.Go(func() {
			draw := rand.New(rand.NewPCG(seed, lane))
			versions := slices.Sorted(maps.Values(limitertest.MembersOf))
			w := newBundleWire(t, 10+draw.Int64N(30), versions[draw.IntN(len(versions))])
			var held [3]int64
			var mu sync.Mutex // of draw, for the proxy's goroutines
			for round := range 20 {
				if !w.stormAllRound(t, draw, &mu, &held) {
					t.Errorf("lane %d, round %d of seed %d", lane, round, seed)
					return
				}
			}
		})
	}
	wg.Wait()
}

func (w *bundleWire) stormAllRound(t *testing.T, draw *rand.Rand, mu *sync.Mutex, holding *[3]int64) bool {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	held := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(held) })
	defer letGo()
	left := 4 // so that no attempt meets five
	w.OnScript(func(s *lua.Script, _ int) redistest.Action {
		mu.Lock()
		defer mu.Unlock()
		if draw.IntN(8) == 0 {
			cancel()
		}
		if s != lua.AcquireAll && s != lua.Acquire && s != lua.GiveBack || left == 0 || draw.IntN(3) != 0 {
			return redistest.Pass
		}
		left--
		return []redistest.Action{
			redistest.DropAnswer, redistest.DropAnswer, redistest.Cut, redistest.Swallow, redistest.Late.When(held), redistest.Pass.When(held),
		}[draw.IntN(6)]
	})
	var wg sync.WaitGroup
	var got [3][8]int64
	for i := range 1 + draw.IntN(8) {
		mu.Lock()
		permits, one, kind := 1+draw.Int64N(6), draw.IntN(3), draw.IntN(4)
		mu.Unlock()
		wg.Go(func() {
			var n int64
			var err error
			switch kind {
			case 0:
				n, err = w.tryAll(ctx, permits, 0)
			case 1:
				n, err = w.tryAll(context.Background(), permits, limitertest.Outlasts)
			case 2:
				n, err = w.tryAll(context.Background(), permits, 0)
			default:
				ok, tryErr := w.family.Limiters[one].TryAcquire(ctx, permits, 0)
				n, err = limitertest.Counted(permits, ok, tryErr)
				got[one][i] = n
				n = 0
			}
			if !errors.Is(err, context.Canceled) {
				assert.NoError(t, err)
			}
			for limiter := range got {
				got[limiter][i] += n
			}
		})
	}
	wg.Wait()
	for i := range holding {
		holding[i] += limitertest.Sum(got[i][:])
	}
	mu.Lock()
	lateFirst, back := draw.IntN(2) == 0, draw.IntN(2) == 0
	mu.Unlock()
	if lateFirst {
		letGo()
	}
	for i, l := range w.family.Limiters {
		if !back || holding[i] == 0 {
			continue
		}
		mu.Lock()
		n := 1 + draw.Int64N(holding[i])
		mu.Unlock()
		if !assert.NoError(t, l.Release(t.Context(), n)) {
			return false
		}
		holding[i] -= n
	}
	letGo()
	return w.checkAll(t, *holding, "a round")
}
