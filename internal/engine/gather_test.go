package engine

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// far is a hook of a wire on which a round trip takes long, and which panics in
// flights of more than one script where that is wanted.
type far struct {
	trip   time.Duration
	panics bool

	mu    sync.Mutex
	trips []int // scripts in each
	loses int   // so many answers get lost, each after half a second
}

func (f *far) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *far) send(cmds ...redis.Cmder) {
	n := 0
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "eval") {
			n++
		}
	}
	if n == 0 {
		return
	}
	f.mu.Lock()
	f.trips = append(f.trips, n)
	trip := f.trip
	f.mu.Unlock()
	time.Sleep(trip)
	if f.panics && n > 1 {
		panic("a hook")
	}
}

func (f *far) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		f.send(cmd)
		if err := next(ctx, cmd); err != nil || !f.lost() {
			return err
		}
		cmd.SetErr(context.DeadlineExceeded)
		return context.DeadlineExceeded
	}
}

func (f *far) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		f.send(cmds...)
		return next(ctx, cmds)
	}
}

func (f *far) lost() bool {
	f.mu.Lock()
	lost := f.loses > 0
	if lost {
		f.loses--
	}
	f.mu.Unlock()
	if lost {
		time.Sleep(500 * time.Millisecond)
	}
	return lost
}

// takes has round trips take that long.
func (f *far) takes(trip time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trip = trip
}

// farEngine returns an Engine that has so many flights under way at most, to a
// server that knows the scripts.
func farEngine(t *testing.T, most int) (*Engine, *far) {
	t.Helper()
	_, m := redistest.Mini(t)
	rdb := redistest.MiniClient(t, m, &redis.Options{PoolSize: 2 * most, MaxConcurrentDials: 1})
	f := &far{}
	rdb.AddHook(f)
	e := newTestEngine(rdb)
	l := testLimiter("warm", hourly)
	for range 2 { // in full, then as one that is known to be shared
		_, _, err := e.Acquire(t.Context(), l, Wish{Permits: 1})
		require.NoError(t, err)
	}
	f.trip, f.trips = 900*time.Millisecond, nil
	return e, f
}

const hourly = "100 3600000 0 0"

func TestACallerAloneGoesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, f := farEngine(t, 2)
		l := testLimiter("a", hourly)
		start := time.Now()
		var wg sync.WaitGroup
		for range 2 { // the second does not wait for the first one's return
			wg.Go(func() {
				a, _, err := e.Acquire(t.Context(), l, Wish{Permits: 1})
				assert.NoError(t, err)
				assert.True(t, a.Granted)
				assert.Equal(t, 900*time.Millisecond, time.Since(start))
			})
			synctest.Wait()
		}
		for range 3 { // go together once one is back
			wg.Go(func() {
				a, _, err := e.Acquire(t.Context(), l, Wish{Permits: 1})
				assert.NoError(t, err)
				assert.True(t, a.Granted)
			})
			synctest.Wait()
		}
		assert.Equal(t, 3, e.Waiting(l.Config))
		wg.Wait()
		assert.Equal(t, []int{1, 1, 1}, f.trips)
		assert.Zero(t, e.Groups())
		assert.Zero(t, e.Active())
	})
}

func TestOneWhoLeavesWhileGatheredIsNotSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, f := farEngine(t, 1)
		l, other := testLimiter("a", hourly), testLimiter("b", hourly)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _, err := e.Acquire(t.Context(), other, Wish{Permits: 1})
			assert.NoError(t, err)
		})
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		for range 3 {
			wg.Go(func() {
				start := time.Now()
				_, _, err := e.Acquire(gone, l, Wish{Permits: 5})
				assert.ErrorIs(t, err, context.Canceled)
				assert.Zero(t, time.Since(start))
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		synctest.Wait()
		assert.Equal(t, []int{1}, f.trips)
		a, _, err := e.Acquire(t.Context(), l, Wish{Permits: 1, Figures: true})
		require.NoError(t, err)
		assert.EqualValues(t, 99, a.Remaining)
		assert.Zero(t, e.Active())
	})
}

// The callers of a flight in which a hook panics get an error; those of others get
// their answers.
func TestAPanicReachesTheCallersOfItsFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, f := farEngine(t, 1)
		f.panics = true
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _, err := e.Acquire(t.Context(), testLimiter("first", hourly), Wish{Permits: 1})
			assert.NoError(t, err)
		})
		synctest.Wait()
		for _, name := range []string{"a", "a", "b", "c"} {
			wg.Go(func() {
				_, _, err := e.Acquire(context.Background(), testLimiter(name, hourly), Wish{Permits: 1, Waits: true})
				assert.ErrorIs(t, err, limit.ErrUnknownOutcome)
				assert.ErrorContains(t, err, "a hook")
			})
		}
		synctest.Wait()
		time.Sleep(time.Second)
		wg.Go(func() {
			_, _, err := e.Acquire(t.Context(), testLimiter("last", hourly), Wish{Permits: 1})
			assert.NoError(t, err)
		})
		wg.Wait()
		f.panics = false
		for _, name := range []string{"a", "b", "c"} {
			l := testLimiter(name, hourly)
			a, _, err := e.Acquire(t.Context(), l, Wish{Permits: 1})
			require.NoError(t, err)
			assert.True(t, a.Granted)
			require.NoError(t, e.Release(t.Context(), l, 1))
		}
		synctest.Wait()
		assert.Zero(t, e.Active())
	})
}
