package rratelimiter_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A wire is a limiter whose Client reaches a real Redis through a proxy, and
// what it takes to see what came of the proxy's faults. Its permits come back
// after an hour only, so that each is either held by a caller or free.
type wire struct {
	*rratelimiter.RateLimiter

	client *rratelimiter.Client
	proxy  *redistest.Proxy
	other  *rratelimiter.RateLimiter // another Client's handle, past the proxy
	rdb    *redis.Client             // past the proxy
	keys   redisson.Keys             // Value and Permits are those in use
	rate   int64
	held   chan struct{} // what a fault holds back waits for it
	letGo  func()        // closes held

	mu    sync.Mutex
	calls map[string]int // of each script, as the Client sent them
	gate  *gate
}

// A gate holds back the answer to an acquire.
type gate struct{ reached, open chan struct{} }

// Requests are given up after this time. A slow machine may give up some that
// nobody held, which does no harm: they are repeated.
const answerTimeout = 150 * time.Millisecond

// outlasts is a timeout of callers that are told of a refusal though three answers
// before were lost.
const outlasts = 6 * answerTimeout

// membersOf holds a release of Redisson for each way in which a grant is written
// down: layouts, and whether requests may share a member. With each of them,
// nothing is to be lost or minted.
var membersOf = map[string]string{
	"D2 merged": "4.7.0",
	"D2":        "3.27.2",
	"D1":        "3.20.1",
	"C":         "3.16.8",
	"B":         "3.15.5",
}

// newWire returns a limiter of that configuration; with byDefault, its first
// acquire sets it up.
func newWire(t testing.TB, server *redistest.Server, cfg rratelimiter.Config, byDefault bool, opts ...rratelimiter.Option) *wire {
	t.Helper()
	// With so few connections one flight is under way at a time, so that a test can
	// say who goes together.
	return newWireOf(t, server, cfg, byDefault, 3, opts...)
}

// newWireOf is newWire with that many connections.
func newWireOf(
	t testing.TB, server *redistest.Server, cfg rratelimiter.Config, byDefault bool, connections int, opts ...rratelimiter.Option,
) *wire {
	t.Helper()
	const id = "the-client"
	w := &wire{
		proxy: redistest.StartProxy(t, server.Addr()),
		rdb:   server.Client(t, nil),
		rate:  cfg.Rate,
		held:  make(chan struct{}),
		calls: map[string]int{},
	}
	w.letGo = sync.OnceFunc(func() { close(w.held) })
	t.Cleanup(w.letGo)
	opts = append(opts, rratelimiter.WithClientID(id))
	w.client = newClient(t, w.proxy.Client(t, &redis.Options{ReadTimeout: answerTimeout, PoolSize: connections}), opts...)
	name := redistest.Name(t)
	w.other = newClient(t, w.rdb, opts...).RateLimiter(name)
	if byDefault {
		w.RateLimiter = w.client.RateLimiter(name, rratelimiter.WithDefault(cfg))
	} else {
		w.RateLimiter = w.client.RateLimiter(name)
		mustTrySetRate(t, w.other, cfg)
	}
	w.keys = redisson.KeysOf(name, id)
	if cfg.Type == rratelimiter.PerClient {
		w.keys.Value, w.keys.Permits = w.keys.ClientValue, w.keys.ClientPermits
	}
	for _, s := range lua.All() {
		require.NoError(t, w.rdb.ScriptLoad(t.Context(), s.Source).Err())
	}
	w.onScript(func(*lua.Script, int) redistest.Action { return redistest.Pass })
	return w
}

// hourly is the configuration of a wire that nothing else is asked of.
func hourly(rate int64) rratelimiter.Config { return rratelimiter.PerHour(rate) }

// onScript has f say what becomes of each script call from now on; n counts the
// calls of each script, from 1.
func (w *wire) onScript(f func(script *lua.Script, n int) redistest.Action) {
	seen := map[string]int{}
	w.proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if name := c.Name(); name != "evalsha" && name != "eval" {
			return redistest.Pass
		}
		s := scriptOf(c.Args[1])
		w.mu.Lock()
		w.calls[s.Name]++
		g := w.gate
		if s.Name == lua.Acquire.Name && g != nil {
			w.gate = nil
			w.mu.Unlock()
			close(g.reached)
			return redistest.Pass.When(g.open)
		}
		w.mu.Unlock()
		seen[s.Name]++
		return f(s, seen[s.Name])
	})
}

// scriptOf returns the script with that SHA or source.
func scriptOf(text string) *lua.Script {
	for _, s := range lua.All() {
		if s.SHA == text || s.Source == text {
			return s
		}
	}
	return &lua.Script{}
}

// on has the calls of one script, from now on, meet the actions in turn.
func (w *wire) on(script *lua.Script, actions ...redistest.Action) {
	w.onScript(func(s *lua.Script, n int) redistest.Action {
		if s == script && n <= len(actions) {
			return actions[n-1]
		}
		return redistest.Pass
	})
}

// sent returns how often the Client sent the script.
func (w *wire) sent(script *lua.Script) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[script.Name]
}

// checkHeld waits until nothing is on its way any more, and checks that the
// permits which callers hold are those in use, and that the others are free.
func (w *wire) checkHeld(t testing.TB, held int64, when string) bool {
	t.Helper()
	var inUse, free int64
	for until := time.Now().Add(5 * time.Second); ; {
		w.proxy.Settle(t)
		inUse = used(t, w.rdb, w.keys.Permits)
		var stored bool
		if free, stored = storedValue(t, w.rdb, w.keys.Value); !stored {
			free = w.rate
		}
		if inUse == held && free == w.rate-held || time.Now().After(until) {
			break
		}
		time.Sleep(5 * time.Millisecond) // a give-back may be on its way
	}
	return assert.Equal(t, held, inUse, "%s: permits in use; more are lost, fewer are minted", when) &&
		assert.Equal(t, w.rate-held, free, "%s: free permits", when)
}

// A wish is a request. It returns the permits that it was granted.
type wish func(w *wire) (int64, error)

func counted(permits int64, granted bool, err error) (int64, error) {
	if !granted {
		permits = 0
	}
	return permits, err
}

// tryFor is a TryAcquire with no timeout.
func tryFor(permits int64) wish { return waitFor(permits, 0) }

func waitFor(permits int64, timeout time.Duration) wish {
	return func(w *wire) (int64, error) {
		ok, err := w.TryAcquire(context.Background(), permits, timeout)
		return counted(permits, ok, err)
	}
}

func takeFor(permits int64) wish {
	return func(w *wire) (int64, error) {
		d, err := w.Take(context.Background(), permits)
		return counted(permits, d.Granted, err)
	}
}

// ask makes the requests at the same time, in one batch, and returns what each
// was granted.
func (w *wire) ask(t testing.TB, wishes ...wish) []int64 {
	t.Helper()
	got := make([]int64, len(wishes))
	var wg sync.WaitGroup
	open := func() {}
	if len(wishes) > 1 {
		// While a request is held on its way, the others gather. This one takes
		// nothing.
		g := &gate{make(chan struct{}), make(chan struct{})}
		w.mu.Lock()
		w.gate = g
		w.mu.Unlock()
		wg.Go(func() {
			_, err := w.TryAcquire(context.Background(), w.rate+1, 0)
			assert.ErrorIs(t, err, rratelimiter.ErrPermitsExceedRate)
		})
		<-g.reached
		open = func() { close(g.open) }
	}
	for i, wish := range wishes {
		wg.Go(func() {
			granted, err := wish(w)
			if !errors.Is(err, context.Canceled) {
				assert.NoError(t, err)
			}
			got[i] = granted
		})
		for until := time.Now().Add(5 * time.Second); len(wishes) > 1 && queued(w.client, w.Name()) <= i && time.Now().Before(until); {
			time.Sleep(100 * time.Microsecond)
		}
	}
	open()
	wg.Wait()
	return got
}

func sum(permits []int64) int64 {
	total := int64(0)
	for _, n := range permits {
		total += n
	}
	return total
}

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
	wishes []wish
	want   []int64
}{
	"one granted":              {2, []wish{tryFor(3)}, []int64{3}},
	"one granted all":          {0, []wish{tryFor(10)}, []int64{10}},
	"one refused":              {9, []wish{tryFor(3)}, []int64{0}},
	"Take granted":             {2, []wish{takeFor(3)}, []int64{3}},
	"Take refused":             {9, []wish{takeFor(3)}, []int64{0}},
	"one that waits":           {9, []wish{waitFor(3, outlasts)}, []int64{0}},
	"batch granted":            {0, []wish{tryFor(1), tryFor(1), tryFor(2), tryFor(3)}, []int64{1, 1, 2, 3}},
	"batch granted, all used":  {3, []wish{tryFor(1), tryFor(1), tryFor(2), tryFor(3)}, []int64{1, 1, 2, 3}},
	"batch granted in part":    {4, []wish{tryFor(3), tryFor(1), tryFor(5), tryFor(2)}, []int64{3, 1, 0, 2}},
	"batch granted in part, 1": {4, []wish{tryFor(3), tryFor(5), tryFor(2)}, []int64{3, 0, 2}},
	"batch refused":            {9, []wish{tryFor(3), tryFor(2)}, []int64{0, 0}},
	"batch with Take":          {4, []wish{tryFor(3), takeFor(1), takeFor(5), tryFor(2)}, []int64{3, 1, 0, 2}},
	"batch with the line": {
		4,
		[]wish{waitFor(3, time.Second), waitFor(4, outlasts), tryFor(2), takeFor(2)},
		[]int64{3, 0, 2, 0},
	},
	"batch beyond the rate": {4, []wish{tryFor(1), tryFor(2), tryFor(9)}, []int64{1, 2, 0}},
}

// checkOnce runs all cases, each on limiters of both types and one set up by
// default, and checks that permits in use are those which callers hold.
func checkOnce(t *testing.T, version string, faults faults) {
	t.Parallel()
	server := redistest.Shared(t)
	var wg sync.WaitGroup
	for name, c := range onceCases {
		for kind, cfg := range map[string]rratelimiter.Config{
			"shared":     hourly(10),
			"PER_CLIENT": perClient(10, time.Hour),
			"default":    hourly(10),
		} {
			if kind != "shared" && name != "one granted" && name != "batch granted in part" {
				continue
			}
			wg.Go(func() {
				byDefault := kind == "default"
				w := newWire(t, server, cfg, byDefault, rratelimiter.WithRedissonVersion(version))
				inUse, want := c.inUse, c.want
				switch {
				case !byDefault && inUse > 0:
					mustAcquire(t, w.other, inUse)
				case byDefault && inUse > 0:
					inUse, want = 0, nil // nobody can have used it before
				}
				w.on(lua.Acquire, faults(w.held)...)
				got := w.ask(t, c.wishes...)
				what := name + ", " + kind
				if want != nil {
					assert.Equal(t, want, got, "%s: granted", what)
				}
				w.checkHeldSoon(t, inUse+sum(got), what)
				w.letGo()
				w.checkHeld(t, inUse+sum(got), what+", when all had arrived")
			})
		}
	}
	wg.Wait()
}

// checkHeldSoon is checkHeld while requests or answers are held back.
func (w *wire) checkHeldSoon(t testing.TB, held int64, when string) {
	t.Helper()
	assert.Equal(t, held, used(t, w.rdb, w.keys.Permits), "%s: permits in use", when)
}

func TestAcquireHappensOnce(t *testing.T) {
	t.Parallel()
	for name, faults := range lossy {
		for layout, version := range membersOf {
			t.Run(name+", "+layout, func(t *testing.T) { checkOnce(t, version, faults) })
		}
	}
}

func TestAcquireHappensOnceThoughItArrivesLateOrTwice(t *testing.T) {
	t.Parallel()
	for name, faults := range tardy {
		for layout, version := range membersOf {
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
		wishes []wish
		then   func(t *testing.T, w *wire) (given int64) // back, of all that are in use
	}{
		"one, refused, permits released since": {10, []wish{tryFor(3)}, func(t *testing.T, w *wire) int64 {
			require.NoError(t, w.other.Release(t.Context(), 8))
			return 8
		}},
		"batch, refused, permits released since": {10, []wish{tryFor(3), tryFor(2)}, func(t *testing.T, w *wire) int64 {
			require.NoError(t, w.other.Release(t.Context(), 8))
			return 8
		}},
		"one, granted, some released since": {2, []wish{tryFor(5)}, func(t *testing.T, w *wire) int64 {
			require.NoError(t, w.Release(t.Context(), 2))
			return 2
		}},
		"one, granted, all released since": {2, []wish{tryFor(5)}, func(t *testing.T, w *wire) int64 {
			require.NoError(t, w.Release(t.Context(), 5))
			return 5
		}},
		"one, granted, everything released since": {2, []wish{tryFor(5)}, func(t *testing.T, w *wire) int64 {
			require.NoError(t, w.Release(t.Context(), 100))
			return 7
		}},
		"batch, granted, few are free": {0, []wish{tryFor(3), tryFor(3)}, func(*testing.T, *wire) int64 { return 0 }},
		"batch, granted, some released since": {2, []wish{tryFor(3), tryFor(2)}, func(t *testing.T, w *wire) int64 {
			require.NoError(t, w.Release(t.Context(), 2))
			return 2
		}},
		"batch, granted, all released since": {2, []wish{tryFor(3), tryFor(2)}, func(t *testing.T, w *wire) int64 {
			require.NoError(t, w.Release(t.Context(), 5))
			return 5
		}},
		"batch, granted in part, some released since": {4, []wish{tryFor(3), tryFor(4), tryFor(2)}, func(t *testing.T, w *wire) int64 {
			require.NoError(t, w.Release(t.Context(), 1))
			return 1
		}},
		"batch, granted in part, all released since": {4, []wish{tryFor(3), tryFor(4), tryFor(2)}, func(t *testing.T, w *wire) int64 {
			require.NoError(t, w.Release(t.Context(), 5))
			return 5
		}},
		"batch, granted in part, everything released since": {4, []wish{tryFor(3), tryFor(4), tryFor(2)}, func(t *testing.T, w *wire) int64 {
			require.NoError(t, w.Release(t.Context(), 100))
			return 9
		}},
		"Take, refused, permits released since": {10, []wish{takeFor(3)}, func(t *testing.T, w *wire) int64 {
			require.NoError(t, w.other.Release(t.Context(), 8))
			return 8
		}},
	} {
		for layout, version := range membersOf {
			t.Run(name+", "+layout, func(t *testing.T) {
				t.Parallel()
				w := newWire(t, redistest.Shared(t), hourly(10), false, rratelimiter.WithRedissonVersion(version))
				if tt.inUse > 0 {
					mustAcquire(t, w.other, tt.inUse)
				}
				w.on(lua.Acquire, redistest.Late.When(w.held))
				got := w.ask(t, tt.wishes...)
				held := tt.inUse + sum(got)
				w.checkHeldSoon(t, held, "before")
				held -= tt.then(t, w)
				w.checkHeldSoon(t, held, "released")
				w.letGo()
				w.checkHeld(t, held, "the request arrived")
			})
		}
	}
}

// Between an attempt whose answer was lost and its repeat, another Client may
// change what the attempt left behind.
func TestAcquireHappensOnceThoughOthersInterfere(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		wishes []wish
		change func(t *testing.T, w *wire) error
		given  int64 // back by the change
		others int64 // taken by it
		rate   int64 // after it
	}{
		"one, Release of some": {
			[]wish{tryFor(5)},
			func(t *testing.T, w *wire) error { return w.other.Release(t.Context(), 2) }, 2, 0, 10,
		},
		"one, Release of all": {
			[]wish{tryFor(5)},
			func(t *testing.T, w *wire) error { return w.other.Release(t.Context(), 5) }, 5, 0, 10,
		},
		"batch, Release of some": {
			[]wish{tryFor(2), tryFor(3)},
			func(t *testing.T, w *wire) error { return w.other.Release(t.Context(), 2) }, 2, 0, 10,
		},
		"batch granted in part, Release of some": {
			[]wish{tryFor(4), tryFor(7), tryFor(4)},
			func(t *testing.T, w *wire) error { return w.other.Release(t.Context(), 1) }, 1, 0, 10,
		},
		"one, a lower rate": {
			[]wish{tryFor(5)},
			func(t *testing.T, w *wire) error {
				return w.other.SetRate(t.Context(), hourly(3), rratelimiter.KeepState())
			}, 0, 0, 3,
		},
		"batch, a lower rate": {
			[]wish{tryFor(2), tryFor(4), tryFor(1)},
			func(t *testing.T, w *wire) error {
				return w.other.SetRate(t.Context(), hourly(3), rratelimiter.KeepState())
			}, 0, 0, 3,
		},
		"one, a higher rate": {
			[]wish{tryFor(5)},
			func(t *testing.T, w *wire) error {
				return w.other.SetRate(t.Context(), hourly(30), rratelimiter.KeepState())
			}, 0, 0, 30,
		},
		"batch granted in part, a higher rate": {
			[]wish{tryFor(4), tryFor(7), tryFor(4)},
			func(t *testing.T, w *wire) error {
				return w.other.SetRate(t.Context(), hourly(30), rratelimiter.KeepState())
			}, 0, 0, 30,
		},
		"one, a new start": {
			[]wish{tryFor(5)},
			func(t *testing.T, w *wire) error { return w.other.SetRate(t.Context(), hourly(10)) }, 0, 0, 10,
		},
		"batch, a new start": {
			[]wish{tryFor(4), tryFor(7), tryFor(4)},
			func(t *testing.T, w *wire) error { return w.other.SetRate(t.Context(), hourly(10)) }, 0, 0, 10,
		},
		"one, the value is lost": {
			[]wish{tryFor(5)},
			func(t *testing.T, w *wire) error { return w.rdb.Del(t.Context(), w.keys.Value).Err() }, 0, 0, 10,
		},
		"batch granted in part, others take the rest": {
			[]wish{tryFor(4), tryFor(9), tryFor(4)},
			func(t *testing.T, w *wire) error {
				mustAcquire(t, w.other, 2)
				return nil
			}, 0, 2, 10,
		},
	} {
		for layout, version := range membersOf {
			t.Run(name+", "+layout, func(t *testing.T) {
				t.Parallel()
				w := newWire(t, redistest.Shared(t), hourly(10), false, rratelimiter.WithRedissonVersion(version))
				w.onScript(func(s *lua.Script, n int) redistest.Action {
					if s == lua.Acquire && n == 2 {
						w.rate = tt.rate
						assert.NoError(t, tt.change(t, w))
					}
					if s == lua.Acquire && n == 1 {
						return redistest.DropAnswer
					}
					return redistest.Pass
				})
				var granted int64
				if len(tt.wishes) > 1 {
					granted = sum(w.askAny(t, tt.wishes...))
				} else {
					granted, _ = tt.wishes[0](w) // its permits may exceed the rate now
				}
				w.proxy.Settle(t)
				inUse := used(t, w.rdb, w.keys.Permits)
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
				free, _ := storedValue(t, w.rdb, w.keys.Value)
				assert.Equal(t, w.rate-inUse, free)
			})
		}
	}
}

// askAny is ask for requests that may fail.
func (w *wire) askAny(t testing.TB, wishes ...wish) []int64 {
	t.Helper()
	lenient := make([]wish, len(wishes))
	for i, f := range wishes {
		lenient[i] = func(w *wire) (int64, error) {
			granted, err := f(w)
			if errors.Is(err, rratelimiter.ErrPermitsExceedRate) {
				err = nil
			}
			return granted, err
		}
	}
	return w.ask(t, lenient...)
}

// A Release of the same Client waits for the repeat: until then nobody knows
// what there is to release.
func TestReleaseWaitsForWhatIsInDoubt(t *testing.T) {
	t.Parallel()
	w := newWire(t, redistest.Shared(t), hourly(10), false)
	mustAcquire(t, w.RateLimiter, 4)
	var released sync.WaitGroup
	w.onScript(func(s *lua.Script, n int) redistest.Action {
		if s == lua.Acquire && n == 1 {
			released.Go(func() { assert.NoError(t, w.Release(context.Background(), 4)) })
			return redistest.DropAnswer
		}
		if s == lua.Acquire && n == 2 {
			assert.Zero(t, w.sent(lua.Release))
		}
		return redistest.Pass
	})
	assert.Equal(t, []int64{5}, w.ask(t, tryFor(5)))
	released.Wait()
	assert.Equal(t, 1, w.sent(lua.Release))
	w.checkHeld(t, 5, "released")
}

// manyRows adds members of one permit each to a wire's set, and takes them off
// the value.
func (w *wire) manyRows(t testing.TB, age time.Duration, count int) {
	t.Helper()
	free, ok := storedValue(t, w.rdb, w.keys.Value)
	if !ok {
		free = w.rate
	}
	addGrants(t, w.rdb, w.keys.Permits, age, count, 1)
	require.NoError(t, w.rdb.Set(t.Context(), w.keys.Value, free-int64(count), 0).Err())
}

// newestGo removes that many of the newest of those members, and puts their
// permits back.
func (w *wire) newestGo(t testing.TB, count int64) {
	t.Helper()
	require.NoError(t, w.rdb.ZRemRangeByRank(t.Context(), w.keys.Permits, -count, -1).Err())
	require.NoError(t, w.rdb.IncrBy(t.Context(), w.keys.Value, count).Err())
}

// A repeat may take several script calls, before it finds the attempt and after.
func TestARepeatOfSeveralCalls(t *testing.T) {
	t.Parallel()
	inPart := []wish{tryFor(300), takeFor(900), tryFor(200)}

	t.Run("for newer members", func(t *testing.T) {
		t.Parallel()
		w := newWire(t, redistest.Shared(t), hourly(2500), false)
		mustAcquire(t, w.other, 1400)
		w.onScript(func(s *lua.Script, n int) redistest.Action {
			switch {
			case s == lua.Acquire && n == 1:
				return redistest.DropAnswer
			case s == lua.Acquire && n == 2:
				w.manyRows(t, -time.Millisecond, 600)
			}
			return redistest.Pass
		})
		got := w.ask(t, inPart...)
		assert.Equal(t, []int64{300, 0, 200}, got)
		w.checkHeld(t, 1400+600+500, "repeated")
	})

	// Those that have been looked at are released, so that the attempt stands
	// where the search has been.
	t.Run("for newer members that go", func(t *testing.T) {
		t.Parallel()
		w := newWire(t, redistest.Shared(t), hourly(2500), false)
		mustAcquire(t, w.other, 1400)
		w.onScript(func(s *lua.Script, n int) redistest.Action {
			switch {
			case s == lua.Acquire && n == 1:
				return redistest.DropAnswer
			case s == lua.Acquire && n == 2:
				w.manyRows(t, -time.Millisecond, 600)
			case s == lua.Acquire && n == 3:
				w.newestGo(t, 500)
				assert.NoError(t, w.other.Release(t.Context(), 1000))
			}
			return redistest.Pass
		})
		got := w.ask(t, inPart...)
		assert.Equal(t, []int64{300, 0, 200}, got)
		w.checkHeld(t, 400+100+500, "repeated")
	})

	t.Run("for members that ran out", func(t *testing.T) {
		t.Parallel()
		w := newWire(t, redistest.Shared(t), every(2500, 3*time.Second), false)
		mustAcquire(t, w.other, 800)
		w.manyRows(t, 2500*time.Millisecond, 600)
		runOut := time.Now().Add(505 * time.Millisecond)
		w.onScript(func(s *lua.Script, n int) redistest.Action {
			switch {
			case s == lua.Acquire && n == 1:
				return redistest.DropAnswer
			case s == lua.Acquire && n == 2:
				time.Sleep(time.Until(runOut))
			}
			return redistest.Pass
		})
		got := w.ask(t, tryFor(300), takeFor(850), tryFor(200))
		assert.Equal(t, []int64{300, 0, 200}, got)
		w.checkHeld(t, 800+500, "repeated")
	})

	t.Run("for a value that was lost", func(t *testing.T) {
		t.Parallel()
		w := newWire(t, redistest.Shared(t), hourly(2500), false)
		mustAcquire(t, w.other, 1300)
		w.manyRows(t, time.Minute, 600)
		w.onScript(func(s *lua.Script, n int) redistest.Action {
			switch {
			case s == lua.Acquire && n == 1:
				return redistest.DropAnswer
			case s == lua.Acquire && n == 2:
				assert.NoError(t, w.rdb.Del(t.Context(), w.keys.Value).Err())
			}
			return redistest.Pass
		})
		got := w.ask(t, inPart...)
		assert.Equal(t, []int64{300, 0, 200}, got)
		w.checkHeld(t, 1300+600+500, "repeated")
	})
}

func TestAcquireWithoutAnyAnswer(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]redistest.Action{
		"dropped": redistest.DropAnswer,
		"cut":     redistest.Cut,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, redistest.Shared(t), hourly(10), false)
			w.onScript(func(s *lua.Script, _ int) redistest.Action {
				if s == lua.Acquire {
					return action
				}
				return redistest.Pass
			})
			ok, err := w.TryAcquire(t.Context(), 3, 0)
			require.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
			assert.False(t, ok)
			_, err = w.Take(t.Context(), 2)
			require.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
			require.ErrorIs(t, w.Acquire(t.Context(), 2), rratelimiter.ErrUnknownOutcome)
			assert.LessOrEqual(t, w.sent(lua.Acquire), 3*5)
			if action == redistest.Cut {
				w.checkHeld(t, 0, "none arrived")
			} else {
				w.checkHeld(t, 3+2+2, "each arrived, and counts once")
			}

			w.onScript(func(*lua.Script, int) redistest.Action { return redistest.Pass })
			mustAcquire(t, w.RateLimiter, 1)
		})
	}
}

// A write is not repeated once it may have run.
func TestWritesRunAtMostOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		script *lua.Script
		write  func(ctx context.Context, w *wire) error
		ran    func(t *testing.T, w *wire) bool
	}{
		"Release": {
			lua.Release,
			func(ctx context.Context, w *wire) error { return w.Release(ctx, 2) },
			func(t *testing.T, w *wire) bool { return used(t, w.rdb, w.keys.Permits) == 4 },
		},
		"TrySetRate": {
			lua.TrySetRate,
			func(ctx context.Context, w *wire) error {
				_, err := w.client.RateLimiter(w.Name()+":new").TrySetRate(ctx, hourly(5))
				return err
			},
			func(t *testing.T, w *wire) bool { return w.rdb.Exists(t.Context(), w.Name()+":new").Val() == 1 },
		},
		"SetRate": {
			lua.SetRate,
			func(ctx context.Context, w *wire) error { return w.SetRate(ctx, hourly(20)) },
			func(t *testing.T, w *wire) bool { return w.rdb.HGet(t.Context(), w.Name(), "rate").Val() == "20" },
		},
		"UpdateRate": {
			lua.SetRate,
			func(ctx context.Context, w *wire) error {
				_, err := w.UpdateRate(ctx, hourly(20), rratelimiter.KeepState())
				return err
			},
			func(t *testing.T, w *wire) bool { return w.rdb.HGet(t.Context(), w.Name(), "rate").Val() == "20" },
		},
		"Delete": {
			lua.Delete,
			func(ctx context.Context, w *wire) error {
				_, err := w.Delete(ctx)
				return err
			},
			func(t *testing.T, w *wire) bool { return w.rdb.Exists(t.Context(), w.Name()).Val() == 0 },
		},
		"Rename": {
			lua.Rename,
			func(ctx context.Context, w *wire) error { return w.Rename(ctx, w.Name()+":new") },
			func(t *testing.T, w *wire) bool { return w.rdb.Exists(t.Context(), w.Name()).Val() == 0 },
		},
		"Expire": {
			lua.Expire,
			func(ctx context.Context, w *wire) error {
				_, err := w.Expire(ctx, time.Hour)
				return err
			},
			func(t *testing.T, w *wire) bool { return w.rdb.TTL(t.Context(), w.Name()).Val() > 0 },
		},
		"ExpireAt": {
			lua.Expire,
			func(ctx context.Context, w *wire) error {
				_, err := w.ExpireAt(ctx, time.Now().Add(time.Hour))
				return err
			},
			func(t *testing.T, w *wire) bool { return w.rdb.TTL(t.Context(), w.Name()).Val() > 0 },
		},
		"ClearExpire": {
			lua.ClearExpire,
			func(ctx context.Context, w *wire) error {
				if err := w.rdb.Expire(ctx, w.Name(), time.Hour).Err(); err != nil {
					return err
				}
				_, err := w.ClearExpire(ctx)
				return err
			},
			func(t *testing.T, w *wire) bool { return w.rdb.TTL(t.Context(), w.Name()).Val() == -1 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var wg sync.WaitGroup
			for fault, action := range map[string]func(w *wire) redistest.Action{
				"answer dropped":   func(*wire) redistest.Action { return redistest.DropAnswer },
				"answer swallowed": func(*wire) redistest.Action { return redistest.Swallow },
				"answer held":      func(w *wire) redistest.Action { return redistest.Pass.When(w.held) },
				"request cut":      func(*wire) redistest.Action { return redistest.Cut },
				"request late":     func(w *wire) redistest.Action { return redistest.Late.When(w.held) },
			} {
				wg.Go(func() {
					w := newWire(t, redistest.Shared(t), hourly(10), false)
					mustAcquire(t, w.RateLimiter, 6)
					w.on(tt.script, action(w))
					err := tt.write(context.Background(), w)
					assert.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome, fault)
					assert.ErrorContains(t, err, w.Name(), fault)
					w.letGo()
					w.proxy.Settle(t)
					assert.Equal(t, 1, w.sent(tt.script), "%s: it is not repeated", fault)
					assert.Equal(t, fault != "request cut", tt.ran(t, w), "%s: it ran", fault)
				})
			}
			wg.Wait()
		})
	}
}

// Reads are repeated.
func TestReadsOutliveLostAnswers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		script *lua.Script
		read   func(ctx context.Context, w *wire) (any, error)
		want   any
	}{
		"Config":           {lua.Config, func(ctx context.Context, w *wire) (any, error) { return w.Config(ctx) }, hourly(10)},
		"AvailablePermits": {lua.Available, func(ctx context.Context, w *wire) (any, error) { return w.AvailablePermits(ctx) }, int64(4)},
		"TTL":              {lua.TTL, func(ctx context.Context, w *wire) (any, error) { return w.TTL(ctx) }, time.Duration(-1)},
		"Exists":           {lua.TTL, func(ctx context.Context, w *wire) (any, error) { return w.Exists(ctx) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, redistest.Shared(t), hourly(10), false)
			mustAcquire(t, w.RateLimiter, 6)
			w.on(tt.script, redistest.DropAnswer, redistest.Swallow, redistest.Cut)
			got, err := tt.read(t.Context(), w)
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
			w.checkHeld(t, 6, "read")
		})
	}
}

func TestScriptsThatTheServerForgot(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	for name, tt := range map[string]struct {
		actions []redistest.Action // EVALSHA, EVAL, EVALSHA ...
		forget  int                // before that call, too
	}{
		"no fault":             {nil, 0},
		"answer dropped":       {[]redistest.Action{redistest.Pass, redistest.DropAnswer}, 0},
		"NOSCRIPT dropped":     {[]redistest.Action{redistest.DropAnswer}, 0},
		"cut":                  {[]redistest.Action{redistest.Pass, redistest.Cut, redistest.Pass, redistest.DropAnswer}, 0},
		"forgotten meanwhile":  {[]redistest.Action{redistest.Pass, redistest.DropAnswer}, 3},
		"forgotten, then lost": {[]redistest.Action{redistest.Pass, redistest.DropAnswer, redistest.Pass, redistest.DropAnswer}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWire(t, server, hourly(10), false)
			mustAcquire(t, w.other, 3)
			for _, wishes := range [][]wish{{tryFor(2)}, {tryFor(1), tryFor(9), takeFor(1)}} {
				require.NoError(t, w.rdb.ScriptFlush(t.Context()).Err())
				w.onScript(func(s *lua.Script, n int) redistest.Action {
					switch {
					case s != lua.Acquire:
						return redistest.Pass
					case n == tt.forget:
						assert.NoError(t, w.rdb.ScriptFlush(t.Context()).Err())
					}
					if n <= len(tt.actions) {
						return tt.actions[n-1]
					}
					return redistest.Pass
				})
				assert.EqualValues(t, 2, sum(w.ask(t, wishes...)))
			}
			w.checkHeld(t, 7, "acquired")

			require.NoError(t, w.rdb.ScriptFlush(t.Context()).Err())
			require.NoError(t, w.Release(t.Context(), 3), "NOSCRIPT says that it did not run")
			w.checkHeld(t, 4, "released")
			require.NoError(t, w.rdb.ScriptFlush(t.Context()).Err())
			w.on(lua.Release, redistest.Pass, redistest.DropAnswer)
			require.ErrorIs(t, w.Release(t.Context(), 1), rratelimiter.ErrUnknownOutcome)
			w.checkHeld(t, 3, "released once")
		})
	}
}

// cancelledInFlight makes requests in one batch; those with a true go away while
// it is on its way, before it reaches Redis. It returns what the others were
// granted.
func (w *wire) cancelledInFlight(t testing.TB, permits []int64, goes []bool, giveBack ...redistest.Action) []int64 {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var away sync.WaitGroup
	var wishes []wish
	for i, n := range permits {
		if !goes[i] {
			wishes = append(wishes, tryFor(n))
			continue
		}
		away.Add(1)
		wishes = append(wishes, func(w *wire) (int64, error) {
			defer away.Done()
			ok, err := w.TryAcquire(ctx, n, 0)
			assert.ErrorIs(t, err, context.Canceled)
			return counted(n, ok, err)
		})
	}
	w.onScript(func(s *lua.Script, n int) redistest.Action {
		switch {
		case s == lua.Acquire && n == 1:
			cancel()
			away.Wait()
		case s == lua.GiveBack && n <= len(giveBack):
			return giveBack[n-1]
		}
		return redistest.Pass
	})
	return w.ask(t, wishes...)
}

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
		for layout, version := range membersOf {
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
						w := newWire(t, redistest.Shared(t), hourly(10), false, rratelimiter.WithRedissonVersion(version))
						mustAcquire(t, w.other, 2)
						got := w.cancelledInFlight(t, tt.permits, tt.goes, faults(w.held)...)
						assert.Equal(t, tt.held, sum(got), what)
						assert.Eventually(t, func() bool {
							return used(t, w.rdb, w.keys.Permits) <= 2+tt.held
						}, 5*time.Second, time.Millisecond, what)
						w.letGo()
						w.checkHeld(t, 2+tt.held, what)
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
	for name, change := range map[string]func(t *testing.T, w *wire, n int) (others int64){
		"behind few": func(t *testing.T, w *wire, n int) int64 {
			if n == 1 {
				w.manyRows(t, -time.Millisecond, 100)
			}
			return 100
		},
		"behind many": func(t *testing.T, w *wire, n int) int64 {
			if n == 1 {
				w.manyRows(t, -time.Millisecond, 1000)
			}
			return 1000
		},
		"behind many that go": func(t *testing.T, w *wire, n int) int64 {
			switch n {
			case 1:
				w.manyRows(t, -time.Millisecond, 1000)
			case 2:
				w.newestGo(t, 900)
			}
			return 100
		},
		"behind more and more": func(t *testing.T, w *wire, n int) int64 {
			if n <= 3 {
				w.manyRows(t, -time.Millisecond, 300)
			}
			return 300 * int64(min(n, 3))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, redistest.Shared(t), hourly(2000), false)
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan struct{})
			var others int64
			w.onScript(func(s *lua.Script, n int) redistest.Action {
				switch s {
				case lua.Acquire:
					cancel()
					<-gone
				case lua.GiveBack:
					if n == 1 {
						assert.NoError(t, w.other.Release(t.Context(), 2))
					}
					others = change(t, w, n)
				}
				return redistest.Pass
			})
			_, err := w.TryAcquire(ctx, 5, 0)
			require.ErrorIs(t, err, context.Canceled)
			close(gone)
			require.NoError(t, w.client.Close(t.Context()))
			w.checkHeld(t, others, "given back")
		})
	}
}

// A Release that comes after a give-back whose answer was lost does not meet it
// half way.
func TestReleaseAfterAGiveBackInDoubt(t *testing.T) {
	t.Parallel()
	w := newWire(t, redistest.Shared(t), hourly(10), false)
	mustAcquire(t, w.other, 2)
	got := w.cancelledInFlight(t, []int64{3, 4}, []bool{true, false}, redistest.DropAnswer, redistest.DropAnswer)
	assert.EqualValues(t, 4, sum(got))
	require.NoError(t, w.Release(t.Context(), 4))
	w.checkHeld(t, 2, "released")
}

// A hitch is a fault of one call; held is closed late in the round.
type hitch func(held <-chan struct{}) redistest.Action

// A soak has callers ask in random batches, go away and release, while random
// calls of the scripts meet random faults, and counts the permits after each
// round.
func soak(t *testing.T, kinds []hitch) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	for lane := range uint64(8) {
		wg.Go(func() {
			draw := rand.New(rand.NewPCG(seed, lane))
			cfg := hourly(10 + draw.Int64N(30))
			if lane%4 == 3 {
				cfg.Type = rratelimiter.PerClient
			}
			versions := slices.Sorted(maps.Values(membersOf))
			version := versions[draw.IntN(len(versions))]
			w := newWire(t, redistest.Shared(t), cfg, lane%4 == 2, rratelimiter.WithRedissonVersion(version))
			var mu sync.Mutex // of draw, for the proxy's goroutines
			var held int64
			for round := range 25 {
				if !w.soakRound(t, draw, &mu, &held, kinds) {
					t.Errorf("lane %d, round %d of seed %d", lane, round, seed)
					return
				}
			}
		})
	}
	wg.Wait()
}

func (w *wire) soakRound(t *testing.T, draw *rand.Rand, mu *sync.Mutex, holding *int64, kinds []hitch) bool {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	inARow := 0
	held := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(held) })
	defer letGo()
	w.onScript(func(s *lua.Script, _ int) redistest.Action {
		mu.Lock()
		defer mu.Unlock()
		if draw.IntN(8) == 0 {
			cancel()
		}
		if s != lua.Acquire && s != lua.GiveBack || inARow == 3 || draw.IntN(3) != 0 {
			inARow = 0
			return redistest.Pass
		}
		inARow++
		return kinds[draw.IntN(len(kinds))](held)
	})

	mu.Lock()
	var wishes []wish
	for range 1 + draw.IntN(5) {
		permits := 1 + draw.Int64N(6)
		switch draw.IntN(4) {
		case 0:
			wishes = append(wishes, takeFor(permits))
		case 1:
			wishes = append(wishes, waitFor(permits, outlasts))
		case 2:
			wishes = append(wishes, func(w *wire) (int64, error) {
				ok, err := w.TryAcquire(ctx, permits, 0)
				return counted(permits, ok, err)
			})
		default:
			wishes = append(wishes, tryFor(permits))
		}
	}
	mu.Unlock()

	*holding += sum(w.ask(t, wishes...))
	mu.Lock()
	back := int64(0)
	if *holding > 0 && draw.IntN(2) == 0 {
		back = 1 + draw.Int64N(*holding)
	}
	lateFirst := draw.IntN(2) == 0
	mu.Unlock()
	if lateFirst {
		letGo()
	}
	if back > 0 {
		if !assert.NoError(t, w.Release(t.Context(), back)) {
			return false
		}
		*holding -= back
	}
	if !lateFirst {
		letGo()
	}
	return w.checkHeld(t, *holding, fmt.Sprintf("a round with %d requests", len(wishes)))
}

func TestSoakOfLostAnswers(t *testing.T) {
	t.Parallel()
	soak(t, []hitch{
		func(<-chan struct{}) redistest.Action { return redistest.DropAnswer },
		func(<-chan struct{}) redistest.Action { return redistest.DropAnswer },
		func(<-chan struct{}) redistest.Action { return redistest.Cut },
		func(<-chan struct{}) redistest.Action { return redistest.Cut },
		func(<-chan struct{}) redistest.Action { return redistest.Swallow },
		func(held <-chan struct{}) redistest.Action { return redistest.Pass.When(held) },
	})
}

func TestSoakOfLateRequests(t *testing.T) {
	t.Parallel()
	soak(t, []hitch{
		func(<-chan struct{}) redistest.Action { return redistest.DropAnswer },
		func(<-chan struct{}) redistest.Action { return redistest.Cut },
		func(held <-chan struct{}) redistest.Action { return redistest.Late.When(held) },
		func(held <-chan struct{}) redistest.Action { return redistest.Late.When(held) },
	})
}

// A repeat that was answered that its permits exceed the rate counts as answered
// too: with a higher rate the late request must not take permits for nobody.
func TestARequestAboveTheRateThatIsLateTakesNothing(t *testing.T) {
	t.Parallel()
	for layout, version := range membersOf {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, redistest.Shared(t), hourly(4), false, rratelimiter.WithRedissonVersion(version))
			w.on(lua.Acquire, redistest.Late.When(w.held))
			_, err := w.TryAcquire(t.Context(), 5, 0)
			require.ErrorIs(t, err, rratelimiter.ErrPermitsExceedRate)
			w.rate = 9
			_, err = w.other.UpdateRate(t.Context(), hourly(9), rratelimiter.KeepState())
			require.NoError(t, err)
			w.letGo()
			w.checkHeld(t, 0, "the request arrived")
		})
	}
}
