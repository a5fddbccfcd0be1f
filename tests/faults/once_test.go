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

// faults are what the attempts of an acquire meet, in turn; held is closed when
// all callers have their answers.
type faults func(held <-chan struct{}) []redistest.Action

func meet(actions ...redistest.Action) faults {
	return func(<-chan struct{}) []redistest.Action { return actions }
}

// Faults under which a request reaches Redis at most once for each attempt, and
// before the next.
var lossy = map[string]faults{
	"no fault":                     meet(),
	"answer dropped":               meet(redistest.DropAnswer),
	"answers dropped":              meet(redistest.DropAnswer, redistest.DropAnswer, redistest.DropAnswer),
	"answer swallowed":             meet(redistest.Swallow),
	"answer swallowed and dropped": meet(redistest.Swallow, redistest.DropAnswer),
	"request cut":                  meet(redistest.Cut),
	"request cut, answer dropped":  meet(redistest.Cut, redistest.DropAnswer),
	"answer dropped, request cut":  meet(redistest.DropAnswer, redistest.Cut),
	"answer held": func(held <-chan struct{}) []redistest.Action {
		return []redistest.Action{redistest.Pass.When(held)}
	},
	"answers held": func(held <-chan struct{}) []redistest.Action {
		return []redistest.Action{redistest.Pass.When(held), redistest.Pass.When(held)}
	},
}

// Faults under which a request reaches Redis after it was repeated, or twice.
var tardy = map[string]faults{
	"request late": func(held <-chan struct{}) []redistest.Action {
		return []redistest.Action{redistest.Late.When(held)}
	},
	"requests late": func(held <-chan struct{}) []redistest.Action {
		return []redistest.Action{redistest.Late.When(held), redistest.Late.When(held)}
	},
	"request late, answer dropped": func(held <-chan struct{}) []redistest.Action {
		return []redistest.Action{redistest.Late.When(held), redistest.DropAnswer}
	},
	"answer dropped, repeat late": func(held <-chan struct{}) []redistest.Action {
		return []redistest.Action{redistest.DropAnswer, redistest.Late.When(held)}
	},
}

// What is asked of limiters of rate 10, with so many permits in use by another
// Client, and what is to come of it.
var onceCases = map[string]struct {
	inUse  int64
	wishes []limitertest.Wish
	want   []int64
}{
	"one granted":              {2, []limitertest.Wish{limitertest.TryFor(3)}, []int64{3}},
	"one granted all":          {0, []limitertest.Wish{limitertest.TryFor(10)}, []int64{10}},
	"one refused":              {9, []limitertest.Wish{limitertest.TryFor(3)}, []int64{0}},
	"Take granted":             {2, []limitertest.Wish{limitertest.TakeFor(3)}, []int64{3}},
	"Take refused":             {9, []limitertest.Wish{limitertest.TakeFor(3)}, []int64{0}},
	"all that are free":        {2, []limitertest.Wish{limitertest.UpToFor(20)}, []int64{8}},
	"fewer than are free":      {2, []limitertest.Wish{limitertest.UpToFor(3)}, []int64{3}},
	"as many as none":          {10, []limitertest.Wish{limitertest.UpToFor(3)}, []int64{0}},
	"one that waits":           {9, []limitertest.Wish{limitertest.WaitFor(3, limitertest.Outlasts)}, []int64{0}},
	"batch granted":            {0, []limitertest.Wish{limitertest.TryFor(1), limitertest.TryFor(1), limitertest.TryFor(2), limitertest.TryFor(3)}, []int64{1, 1, 2, 3}},
	"batch granted, all used":  {3, []limitertest.Wish{limitertest.TryFor(1), limitertest.TryFor(1), limitertest.TryFor(2), limitertest.TryFor(3)}, []int64{1, 1, 2, 3}},
	"batch granted in part":    {4, []limitertest.Wish{limitertest.TryFor(3), limitertest.TryFor(1), limitertest.TryFor(5), limitertest.TryFor(2)}, []int64{3, 1, 0, 2}},
	"batch granted in part, 1": {4, []limitertest.Wish{limitertest.TryFor(3), limitertest.TryFor(5), limitertest.TryFor(2)}, []int64{3, 0, 2}},
	"batch refused":            {9, []limitertest.Wish{limitertest.TryFor(3), limitertest.TryFor(2)}, []int64{0, 0}},
	"batch with Take":          {4, []limitertest.Wish{limitertest.TryFor(3), limitertest.TakeFor(1), limitertest.TakeFor(5), limitertest.TryFor(2)}, []int64{3, 1, 0, 2}},
	"batch with the line": {
		4,
		[]limitertest.Wish{limitertest.WaitFor(3, time.Minute), limitertest.WaitFor(4, limitertest.Outlasts), limitertest.TryFor(2), limitertest.TakeFor(2)},
		[]int64{3, 0, 2, 0},
	},
	"batch beyond the rate": {4, []limitertest.Wish{limitertest.TryFor(1), limitertest.TryFor(2), limitertest.TryFor(9)}, []int64{1, 2, 0}},
}

// checkOnce runs all cases, each on limiters of both types and one set up by
// default, and checks that permits in use are those which callers hold.
func checkOnce(t *testing.T, version string, faults faults) {
	t.Parallel()
	server := redistest.Shared(t)
	var wg sync.WaitGroup
	for name, c := range onceCases {
		for kind, cfg := range map[string]rratelimiter.Config{
			"shared":     limitertest.Hourly(10),
			"PER_CLIENT": limitertest.PerClient(10, time.Hour),
			"default":    limitertest.Hourly(10),
		} {
			if kind != "shared" && name != "one granted" && name != "batch granted in part" {
				continue
			}
			wg.Go(func() {
				byDefault := kind == "default"
				w := limitertest.NewWire(t, server, cfg, byDefault, rratelimiter.WithRedissonVersion(version))
				inUse, want := c.inUse, c.want
				switch {
				case !byDefault && inUse > 0:
					limitertest.MustAcquire(t, w.Other, inUse)
				case byDefault && inUse > 0:
					inUse, want = 0, nil // nobody can have used it before
				}
				w.On(lua.Acquire, faults(w.Held)...)
				got := w.Ask(t, c.wishes...)
				what := name + ", " + kind
				if want != nil {
					assert.Equal(t, want, got, "%s: granted", what)
				}
				w.CheckHeldSoon(t, inUse+limitertest.Sum(got), what)
				w.LetGo()
				w.CheckHeld(t, inUse+limitertest.Sum(got), what+", when all had arrived")
			})
		}
	}
	wg.Wait()
}

func TestAcquireHappensOnce(t *testing.T) {
	t.Parallel()
	for name, faults := range lossy {
		for layout, version := range limitertest.MembersOf {
			t.Run(name+", "+layout, func(t *testing.T) { checkOnce(t, version, faults) })
		}
	}
}

func TestAcquireHappensOnceThoughItArrivesLateOrTwice(t *testing.T) {
	t.Parallel()
	for name, faults := range tardy {
		for layout, version := range limitertest.MembersOf {
			t.Run(name+", "+layout, func(t *testing.T) { checkOnce(t, version, faults) })
		}
	}
}

// What happens to a limiter between an attempt whose request is late and the
// late request itself must not let that take permits for nobody.
func TestARequestThatIsLateTakesNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		inUse  int64
		wishes []limitertest.Wish
		then   func(t *testing.T, w *limitertest.Wire) (given int64) // back, of all that are in use
	}{
		"one, refused, permits released since": {10, []limitertest.Wish{limitertest.TryFor(3)}, func(t *testing.T, w *limitertest.Wire) int64 {
			require.NoError(t, w.Other.Release(t.Context(), 8))
			return 8
		}},
		"batch, refused, permits released since": {10, []limitertest.Wish{limitertest.TryFor(3), limitertest.TryFor(2)}, func(t *testing.T, w *limitertest.Wire) int64 {
			require.NoError(t, w.Other.Release(t.Context(), 8))
			return 8
		}},
		"one, granted, some released since": {2, []limitertest.Wish{limitertest.TryFor(5)}, func(t *testing.T, w *limitertest.Wire) int64 {
			require.NoError(t, w.Release(t.Context(), 2))
			return 2
		}},
		"one, granted, all released since": {2, []limitertest.Wish{limitertest.TryFor(5)}, func(t *testing.T, w *limitertest.Wire) int64 {
			require.NoError(t, w.Release(t.Context(), 5))
			return 5
		}},
		"one, granted, everything released since": {2, []limitertest.Wish{limitertest.TryFor(5)}, func(t *testing.T, w *limitertest.Wire) int64 {
			require.NoError(t, w.Release(t.Context(), 100))
			return 7
		}},
		"batch, granted, few are free": {0, []limitertest.Wish{limitertest.TryFor(3), limitertest.TryFor(3)}, func(*testing.T, *limitertest.Wire) int64 { return 0 }},
		"batch, granted, some released since": {2, []limitertest.Wish{limitertest.TryFor(3), limitertest.TryFor(2)}, func(t *testing.T, w *limitertest.Wire) int64 {
			require.NoError(t, w.Release(t.Context(), 2))
			return 2
		}},
		"batch, granted, all released since": {2, []limitertest.Wish{limitertest.TryFor(3), limitertest.TryFor(2)}, func(t *testing.T, w *limitertest.Wire) int64 {
			require.NoError(t, w.Release(t.Context(), 5))
			return 5
		}},
		"batch, granted in part, some released since": {4, []limitertest.Wish{limitertest.TryFor(3), limitertest.TryFor(4), limitertest.TryFor(2)}, func(t *testing.T, w *limitertest.Wire) int64 {
			require.NoError(t, w.Release(t.Context(), 1))
			return 1
		}},
		"batch, granted in part, all released since": {4, []limitertest.Wish{limitertest.TryFor(3), limitertest.TryFor(4), limitertest.TryFor(2)}, func(t *testing.T, w *limitertest.Wire) int64 {
			require.NoError(t, w.Release(t.Context(), 5))
			return 5
		}},
		"batch, granted in part, everything released since": {4, []limitertest.Wish{limitertest.TryFor(3), limitertest.TryFor(4), limitertest.TryFor(2)}, func(t *testing.T, w *limitertest.Wire) int64 {
			require.NoError(t, w.Release(t.Context(), 100))
			return 9
		}},
		"Take, refused, permits released since": {10, []limitertest.Wish{limitertest.TakeFor(3)}, func(t *testing.T, w *limitertest.Wire) int64 {
			require.NoError(t, w.Other.Release(t.Context(), 8))
			return 8
		}},
	} {
		for layout, version := range limitertest.MembersOf {
			t.Run(name+", "+layout, func(t *testing.T) {
				t.Parallel()
				w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false, rratelimiter.WithRedissonVersion(version))
				if tt.inUse > 0 {
					limitertest.MustAcquire(t, w.Other, tt.inUse)
				}
				w.On(lua.Acquire, redistest.Late.When(w.Held))
				got := w.Ask(t, tt.wishes...)
				held := tt.inUse + limitertest.Sum(got)
				w.CheckHeldSoon(t, held, "before")
				held -= tt.then(t, w)
				w.CheckHeldSoon(t, held, "released")
				w.LetGo()
				w.CheckHeld(t, held, "the request arrived")
			})
		}
	}
}

// Between an attempt whose answer was lost and its repeat, another Client may
// change what the attempt left behind.
func TestAcquireHappensOnceThoughOthersInterfere(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		wishes []limitertest.Wish
		change func(t *testing.T, w *limitertest.Wire) error
		given  int64 // back by the change
		others int64 // taken by it
		rate   int64 // after it
	}{
		"one, Release of some": {
			[]limitertest.Wish{limitertest.TryFor(5)},
			func(t *testing.T, w *limitertest.Wire) error { return w.Other.Release(t.Context(), 2) }, 2, 0, 10,
		},
		"one, Release of all": {
			[]limitertest.Wish{limitertest.TryFor(5)},
			func(t *testing.T, w *limitertest.Wire) error { return w.Other.Release(t.Context(), 5) }, 5, 0, 10,
		},
		"batch, Release of some": {
			[]limitertest.Wish{limitertest.TryFor(2), limitertest.TryFor(3)},
			func(t *testing.T, w *limitertest.Wire) error { return w.Other.Release(t.Context(), 2) }, 2, 0, 10,
		},
		"batch granted in part, Release of some": {
			[]limitertest.Wish{limitertest.TryFor(4), limitertest.TryFor(7), limitertest.TryFor(4)},
			func(t *testing.T, w *limitertest.Wire) error { return w.Other.Release(t.Context(), 1) }, 1, 0, 10,
		},
		"one, a lower rate": {
			[]limitertest.Wish{limitertest.TryFor(5)},
			func(t *testing.T, w *limitertest.Wire) error {
				return w.Other.SetRate(t.Context(), limitertest.Hourly(3), rratelimiter.KeepState())
			}, 0, 0, 3,
		},
		"batch, a lower rate": {
			[]limitertest.Wish{limitertest.TryFor(2), limitertest.TryFor(4), limitertest.TryFor(1)},
			func(t *testing.T, w *limitertest.Wire) error {
				return w.Other.SetRate(t.Context(), limitertest.Hourly(3), rratelimiter.KeepState())
			}, 0, 0, 3,
		},
		"one, a higher rate": {
			[]limitertest.Wish{limitertest.TryFor(5)},
			func(t *testing.T, w *limitertest.Wire) error {
				return w.Other.SetRate(t.Context(), limitertest.Hourly(30), rratelimiter.KeepState())
			}, 0, 0, 30,
		},
		"batch granted in part, a higher rate": {
			[]limitertest.Wish{limitertest.TryFor(4), limitertest.TryFor(7), limitertest.TryFor(4)},
			func(t *testing.T, w *limitertest.Wire) error {
				return w.Other.SetRate(t.Context(), limitertest.Hourly(30), rratelimiter.KeepState())
			}, 0, 0, 30,
		},
		"one, a new start": {
			[]limitertest.Wish{limitertest.TryFor(5)},
			func(t *testing.T, w *limitertest.Wire) error {
				return w.Other.SetRate(t.Context(), limitertest.Hourly(10))
			}, 0, 0, 10,
		},
		"batch, a new start": {
			[]limitertest.Wish{limitertest.TryFor(4), limitertest.TryFor(7), limitertest.TryFor(4)},
			func(t *testing.T, w *limitertest.Wire) error {
				return w.Other.SetRate(t.Context(), limitertest.Hourly(10))
			}, 0, 0, 10,
		},
		"one, the value is lost": {
			[]limitertest.Wish{limitertest.TryFor(5)},
			func(t *testing.T, w *limitertest.Wire) error { return w.Redis.Del(t.Context(), w.Keys.Value).Err() }, 0, 0, 10,
		},
		"batch granted in part, others take the rest": {
			[]limitertest.Wish{limitertest.TryFor(4), limitertest.TryFor(9), limitertest.TryFor(4)},
			func(t *testing.T, w *limitertest.Wire) error {
				limitertest.MustAcquire(t, w.Other, 2)
				return nil
			}, 0, 2, 10,
		},
	} {
		for layout, version := range limitertest.MembersOf {
			t.Run(name+", "+layout, func(t *testing.T) {
				t.Parallel()
				w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false, rratelimiter.WithRedissonVersion(version))
				w.OnScript(func(s *lua.Script, n int) redistest.Action {
					if s == lua.Acquire && n == 2 {
						w.Rate = tt.rate
						assert.NoError(t, tt.change(t, w))
					}
					if s == lua.Acquire && n == 1 {
						return redistest.DropAnswer
					}
					return redistest.Pass
				})
				var granted int64
				if len(tt.wishes) > 1 {
					granted = limitertest.Sum(w.AskAny(t, tt.wishes...))
				} else {
					granted, _ = tt.wishes[0](w) // its permits may exceed the rate now
				}
				w.Proxy.Settle(t)
				inUse := limitertest.InUse(t, w.Redis, w.Keys.Permits)
				// Who is told that it was granted holds its permits, less those that
				// another gave back if it was granted before; who was not holds none.
				// Of a batch nobody can say whose were given back.
				held := granted + tt.others
				if len(tt.wishes) > 1 && tt.given > 0 {
					assert.GreaterOrEqual(t, inUse, held-tt.given, "permits in use, %d granted", granted)
					assert.LessOrEqual(t, inUse, held, "permits in use, %d granted", granted)
				} else {
					assert.Contains(t, []int64{held, held - tt.given}, inUse, "permits in use, %d granted", granted)
				}
				free, _ := limitertest.StoredValue(t, w.Redis, w.Keys.Value)
				assert.Equal(t, w.Rate-inUse, free)
			})
		}
	}
}

// A Release of the same Client waits for the repeat: until then nobody knows
// what there is to release.
func TestReleaseWaitsForWhatIsInDoubt(t *testing.T) {
	t.Parallel()
	w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false)
	limitertest.MustAcquire(t, w.RateLimiter, 4)
	var released sync.WaitGroup
	w.OnScript(func(s *lua.Script, n int) redistest.Action {
		if s == lua.Acquire && n == 1 {
			released.Go(func() { assert.NoError(t, w.Release(context.Background(), 4)) })
			return redistest.DropAnswer
		}
		if s == lua.Acquire && n == 2 {
			assert.Zero(t, w.Sent(lua.Release))
		}
		return redistest.Pass
	})
	assert.Equal(t, []int64{5}, w.Ask(t, limitertest.TryFor(5)))
	released.Wait()
	assert.Equal(t, 1, w.Sent(lua.Release))
	w.CheckHeld(t, 5, "released")
}

// A repeat that was answered that its permits exceed the rate counts as answered
// too: with a higher rate the late request must not take permits for nobody.
func TestARequestAboveTheRateThatIsLateTakesNothing(t *testing.T) {
	t.Parallel()
	for layout, version := range limitertest.MembersOf {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(4), false, rratelimiter.WithRedissonVersion(version))
			w.On(lua.Acquire, redistest.Late.When(w.Held))
			_, err := w.TryAcquire(t.Context(), 5, 0)
			require.ErrorIs(t, err, rratelimiter.ErrPermitsExceedRate)
			w.Rate = 9
			_, err = w.Other.UpdateRate(t.Context(), limitertest.Hourly(9), rratelimiter.KeepState())
			require.NoError(t, err)
			w.LetGo()
			w.CheckHeld(t, 0, "the request arrived")
		})
	}
}
