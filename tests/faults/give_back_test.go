package faults_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// What is given back for callers that went away is given back once.
func TestGiveBackHappensOnce(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]faults{
		"no fault":                     lossy["no fault"],
		"answer dropped":               lossy["answer dropped"],
		"answers dropped":              lossy["answers dropped"],
		"answer swallowed":             lossy["answer swallowed"],
		"answer held":                  lossy["answer held"],
		"request cut":                  lossy["request cut"],
		"answer dropped, request cut":  lossy["answer dropped, request cut"],
		"request late":                 tardy["request late"],
		"request late, answer dropped": tardy["request late, answer dropped"],
		"answer dropped, repeat late":  tardy["answer dropped, repeat late"],
	} {
		for layout, version := range limitertest.MembersOf {
			t.Run(name+", "+layout, func(t *testing.T) {
				t.Parallel()
				var wg sync.WaitGroup
				for what, tt := range map[string]struct {
					permits []int64
					goes    []bool
					held    int64
				}{
					"one":                     {[]int64{3}, []bool{true}, 0},
					"half of a batch":         {[]int64{1, 2, 1, 3}, []bool{true, false, false, true}, 3},
					"a third of a batch":      {[]int64{1, 1, 1}, []bool{true, false, false}, 2},
					"a batch":                 {[]int64{1, 2}, []bool{true, true}, 0},
					"a batch granted in part": {[]int64{3, 7, 2, 1}, []bool{true, false, false, true}, 2},
					"those that were refused": {[]int64{3, 7, 2}, []bool{false, true, false}, 5},
				} {
					wg.Go(func() {
						w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false, rratelimiter.WithRedissonVersion(version))
						limitertest.MustAcquire(t, w.Other, 2)
						got := w.CancelledInFlight(t, tt.permits, tt.goes, faults(w.Held)...)
						assert.Equal(t, tt.held, limitertest.Sum(got), what)
						assert.Eventually(t, func() bool {
							return limitertest.InUse(t, w.Redis, w.Keys.Permits) <= 2+tt.held
						}, time.Minute, time.Millisecond, what)
						w.LetGo()
						w.CheckHeld(t, 2+tt.held, what)
					})
				}
				wg.Wait()
			})
		}
	}
}

// What is given back is found by its id where others have shrunk it, however many
// newer members come and go meanwhile.
func TestGiveBackFindsItsMember(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, w *limitertest.Wire, n int) (others int64){
		"behind few": func(t *testing.T, w *limitertest.Wire, n int) int64 {
			if n == 1 {
				w.ManyRows(t, -time.Millisecond, 100)
			}
			return 100
		},
		"behind many": func(t *testing.T, w *limitertest.Wire, n int) int64 {
			if n == 1 {
				w.ManyRows(t, -time.Millisecond, 1000)
			}
			return 1000
		},
		"behind many that go": func(t *testing.T, w *limitertest.Wire, n int) int64 {
			switch n {
			case 1:
				w.ManyRows(t, -time.Millisecond, 1000)
			case 2:
				w.NewestGo(t, 900)
			}
			return 100
		},
		"behind more and more": func(t *testing.T, w *limitertest.Wire, n int) int64 {
			if n <= 3 {
				w.ManyRows(t, -time.Millisecond, 300)
			}
			return 300 * int64(min(n, 3))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(2000), false)
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan struct{})
			var others int64
			w.OnScript(func(s *lua.Script, n int) redistest.Action {
				switch s {
				case lua.Acquire:
					cancel()
					<-gone
				case lua.GiveBack:
					if n == 1 {
						assert.NoError(t, w.Other.Release(t.Context(), 2))
					}
					others = change(t, w, n)
				}
				return redistest.Pass
			})
			_, err := w.TryAcquire(ctx, 5, 0)
			require.ErrorIs(t, err, context.Canceled)
			close(gone)
			require.NoError(t, w.Client.Close(t.Context()))
			w.CheckHeld(t, others, "given back")
		})
	}
}

// A Release that comes after a give-back whose answer was lost does not meet it
// half way.
func TestReleaseAfterAGiveBackInDoubt(t *testing.T) {
	t.Parallel()
	w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false)
	limitertest.MustAcquire(t, w.Other, 2)
	got := w.CancelledInFlight(t, []int64{3, 4}, []bool{true, false}, redistest.DropAnswer, redistest.DropAnswer)
	assert.EqualValues(t, 4, limitertest.Sum(got))
	require.NoError(t, w.Release(t.Context(), 4))
	w.CheckHeld(t, 2, "released")
}
