package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// far is an Engine at the end of a long wire.
type far struct {
	*Engine
	*redistest.Trips
	sync.WaitGroup // of callers
	recorder

	direct redistest.Client // of the same server
}

// recorder keeps the kinds of events.
type recorder struct {
	limit.NoObserver

	kinds redistest.List[limit.EventKind]
}

func (r *recorder) Happened(e limit.Event) { r.kinds.Add(e.Kind) }

// onFar runs test in a bubble, with an Engine that has that many flights under way at most, to
// a server that knows the scripts.
func onFar(t *testing.T, most int, trip time.Duration, test func(t *testing.T, e *far)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		direct, m := redistest.Mini(t)
		for _, one := range []*lua.Script{lua.Acquire, lua.AcquireAll, lua.Command, lua.GiveBack, lua.SetRate} {
			require.NoError(t, direct.ScriptLoad(t.Context(), one.Source).Err())
		}
		rdb := redistest.MiniClient(t, m, &redistest.Options{PoolSize: 2 * most, MaxConcurrentDials: 1})
		e := &far{Trips: &redistest.Trips{}, direct: direct}
		e.Engine = New(rdb, script.DefaultTimeout, redisson.NewestRules, redisson.NewIdentities(redisson.NewestRules.Layout), observe.New(&e.recorder, nil))
		rdb.AddHook(redistest.Hook(e.Send))
		for range 2 { // in full, then as one that is known to be shared
			e.take(t, testLimiter("warm", hourly), 1)
		}
		e.Forget()
		e.Take(trip)
		test(t, e)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		assert.NoError(t, e.Close(ctx))
		time.Sleep(time.Hour) // calls under way end
		assert.Zero(t, e.lanes.Work())
	})
}

// delays keeps the answers of a script back from now on.
func (e *far) delays(one *lua.Script, by time.Duration) {
	e.Answer(func(cmds []redis.Cmder, failed error) error {
		if slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return redistest.Calls(cmd, one.SHA) }) {
			time.Sleep(by)
		}
		return failed
	})
}

// free checks how many permits are free, once the Engine is closed.
func (e *far) free(t *testing.T, l *Limiter, want int64) {
	t.Helper()
	require.NoError(t, e.Close(t.Context()))
	other := newTestEngine(e.direct)
	got, err := other.Available(t.Context(), l)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	assert.NoError(t, other.Close(t.Context()))
}

// each runs test for each row, as a parallel subtest.
func each[R any](t *testing.T, rows map[string]R, test func(t *testing.T, row R)) {
	t.Helper()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, row)
		})
	}
}

const hourly = "100 3600000 0 0"

// asks takes permits by an Ask, which must be granted.
func (e *Engine) asks(t *testing.T, l *Limiter, q decide.Ask) decide.Answer {
	t.Helper()
	a, err := acquire(t.Context(), e, l, q)
	assert.NoError(t, err)
	assert.True(t, a.Granted, l.Name)
	return a
}

func (e *Engine) take(t *testing.T, l *Limiter, permits int64) {
	t.Helper()
	e.asks(t, l, decide.Ask{Permits: permits})
}

// cameAt returns a request that came at that time.
func cameAt(at time.Time) *request { return &request{place: place{since: at}} }

// requestsIn returns the requests of a line.
func requestsIn(l *line) (all []*request) {
	for p := range l.all() {
		all = append(all, p.request)
	}
	return all
}

// since returns when requests came, in their order.
func since(requests []*request) (all []time.Time) {
	for _, r := range requests {
		all = append(all, r.since)
	}
	return all
}

// A batch that is refused late is put before all who came since without going
// past these for each of its requests: that would take several minutes.
func TestLine_InsertsLateBatchInOnePass(t *testing.T) {
	t.Parallel()
	const waiters = 300_000
	start := time.Now()
	var l line
	for i := range waiters {
		l.insert(cameAt(start.Add(time.Hour + time.Duration(i))))
	}
	most := time.Minute + 20*time.Since(start) // as busy as the machine is
	for i := range waiters {
		l.insert(cameAt(start.Add(time.Duration(i))))
		if i%1000 == 0 {
			require.Less(t, time.Since(start), most)
		}
	}
	assert.True(t, slices.IsSortedFunc(since(requestsIn(&l)), time.Time.Compare))
}

// A grant whose answer is lost is looked for though its caller's patience has ended
// meanwhile, and goes back.
func TestAcquire_LostGrantOfGoneCallerGoesBack(t *testing.T) {
	t.Parallel()
	impatient := decide.Ask{Permits: 4, MayWait: true, Timeout: 100 * time.Millisecond}
	each(t, map[string]func(ctx context.Context, e *far, a, b *Limiter) error{
		"one": func(ctx context.Context, e *far, a, _ *Limiter) error {
			_, err := acquire(ctx, e.Engine, a, impatient)
			return err
		},
		"several": func(ctx context.Context, e *far, a, b *Limiter) error {
			_, err := e.AcquireAll(ctx, []Claim{{Limiter: a, Permits: impatient.Permits}, {Limiter: b, Permits: impatient.Permits}}, impatient)
			return err
		},
	}, func(t *testing.T, ask func(ctx context.Context, e *far, a, b *Limiter) error) {
		onFar(t, 2, 0, func(t *testing.T, e *far) {
			a, b := testLimiter("{a}1", hourly), testLimiter("{a}2", hourly) // a handle is of one Engine
			var lost atomic.Bool
			e.Answer(func(cmds []redis.Cmder, failed error) error {
				if lost.Swap(true) {
					return failed
				}
				time.Sleep(500 * time.Millisecond)
				return redistest.Fail(cmds, context.DeadlineExceeded)
			})
			require.ErrorIs(t, ask(t.Context(), e, a, b), limit.ErrUnknownOutcome)
			time.Sleep(script.DefaultTimeout)
			assert.Zero(t, e.lanes.Work())
			e.take(t, a, 100)
			e.take(t, b, 100)
		})
	})
}

func TestRelease_SharedCallKeepsOwnTimeouts(t *testing.T) {
	t.Parallel()
	type row struct {
		trip time.Duration // of the answer to the two
		last error
	}
	each(t, map[string]row{
		"the answer comes late": {400 * time.Millisecond, nil},
		"no answer comes":       {time.Minute, limit.ErrUnknownOutcome},
	}, func(t *testing.T, tt row) {
		onFar(t, 8, 0, func(t *testing.T, e *far) {
			l := testLimiter("a", hourly)
			e.take(t, l, 30)
			assert.NoError(t, e.Release(t.Context(), l, 1)) // the server knows the script
			release := func(want error) {
				e.Go(func() {
					start := time.Now()
					assert.ErrorIs(t, e.Release(t.Context(), l, 1), want)
					assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout)
				})
			}
			e.Take(2800 * time.Millisecond)
			release(nil) // what comes next waits for it
			time.Sleep(100 * time.Millisecond)
			e.Take(tt.trip)
			release(limit.ErrUnknownOutcome) // its time ends while the two are under way
			time.Sleep(2600 * time.Millisecond)
			release(tt.last)
			e.Wait()
		})
	})
}
