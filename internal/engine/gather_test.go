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
)

// far is an Engine at the end of a long wire.
type far struct {
	*Engine
	sync.WaitGroup // of callers

	mu    sync.Mutex
	trip  time.Duration // how long round trips take
	trips []int         // scripts in each
	loses int           // so many answers get lost, each after half a second
}

// onFar runs test in a bubble, with an Engine that has so many flights under way at
// most, to a server that knows the scripts.
func onFar(t *testing.T, most int, trip time.Duration, test func(t *testing.T, e *far)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		rdb := redistest.MiniClient(t, m, &redis.Options{PoolSize: 2 * most, MaxConcurrentDials: 1})
		e := &far{Engine: newTestEngine(rdb)}
		rdb.AddHook(redistest.Hook(e.send))
		for range 2 { // in full, then as one that is known to be shared
			e.take(t, testLimiter("warm", hourly), 1)
		}
		e.trip, e.trips = trip, nil
		test(t, e)
		time.Sleep(time.Hour) // what is under way ends
		assert.Zero(t, e.Active())
		assert.Zero(t, e.Groups())
	})
}

const hourly = "100 3600000 0 0"

func (e *far) send(cmds []redis.Cmder, next func() error) error {
	n := 0
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "eval") {
			n++
		}
	}
	if n == 0 {
		return next()
	}
	e.mu.Lock()
	e.trips = append(e.trips, n)
	trip := e.trip
	e.mu.Unlock()
	time.Sleep(trip)
	if err := next(); err != nil || !e.lost() {
		return err
	}
	return redistest.Fail(cmds, context.DeadlineExceeded)
}

func (e *far) lost() bool {
	e.mu.Lock()
	lost := e.loses > 0
	if lost {
		e.loses--
	}
	e.mu.Unlock()
	if lost {
		time.Sleep(500 * time.Millisecond)
	}
	return lost
}

// takes sets how long round trips take.
func (e *far) takes(trip time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trip = trip
}

// take takes permits that must be free.
func (e *far) take(t *testing.T, l *Limiter, permits int64) {
	t.Helper()
	a, _, err := e.Acquire(t.Context(), l, Wish{Permits: permits})
	assert.NoError(t, err)
	assert.True(t, a.Granted, l.Name)
}

func TestACallerAloneGoesAtOnce(t *testing.T) {
	t.Parallel()
	onFar(t, 2, 900*time.Millisecond, func(t *testing.T, e *far) {
		l := testLimiter("a", hourly)
		start := time.Now()
		for i := range 5 {
			e.Go(func() {
				e.take(t, l, 1)
				if i < 2 { // the second does not wait for the first one's return
					assert.Equal(t, 900*time.Millisecond, time.Since(start))
				}
			})
			synctest.Wait()
		}
		assert.Equal(t, 3, e.Waiting(l.Config)) // go together once one is back
		e.Wait()
		assert.Equal(t, []int{1, 1, 1}, e.trips)
	})
}

// If all who have gathered have gone, nothing is sent for them.
func TestOneWhoLeavesWhileGatheredIsNotSent(t *testing.T) {
	t.Parallel()
	onFar(t, 1, 900*time.Millisecond, func(t *testing.T, e *far) {
		l := testLimiter("a", hourly)
		e.Go(func() { e.take(t, testLimiter("b", hourly), 1) })
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		for range 3 {
			e.Go(func() {
				_, _, err := e.Acquire(gone, l, Wish{Permits: 5})
				assert.ErrorIs(t, err, context.Canceled)
			})
		}
		synctest.Wait()
		cancel()
		e.Wait()
		assert.Equal(t, []int{1}, e.trips)
		a, _, err := e.Acquire(t.Context(), l, Wish{Permits: 1, Figures: true})
		require.NoError(t, err)
		assert.EqualValues(t, 99, a.Remaining)
	})
}
