package lane_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// errandOf is a call that adds one to a key.
func errandOf(i int) *script.Call {
	return &script.Call{Script: incr, Keys: script.KeysOf(keyOf(i)), Args: script.Constant{}}
}

// What comes by the thousands at a distance is done within the time of a call, by flights
// of a bounded size.
func TestErrandsGoTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flights{trip: 10 * time.Millisecond}
		lanes, direct := lanesOn(t, f, 20)
		l := lanes.Of(t.Context(), "key")
		var wg sync.WaitGroup
		const errands = 3000
		for i := range errands {
			wg.Add(1)
			l.Start(t.Context(), errandOf(i), func(_ any, err error) {
				assert.NoError(t, err)
				wg.Done()
			})
		}
		wg.Wait()
		ran := 0
		for _, size := range f.sizes() {
			assert.LessOrEqual(t, size, 128)
			ran += size
		}
		assert.Equal(t, errands, ran)
		assert.LessOrEqual(t, f.most(), 10+1)
		assert.Equal(t, "1", direct.Get(t.Context(), keyOf(errands-1)).Val())
	})
}

// Errands do not keep decisions waiting behind all of them.
func TestDecisionsGoBesideErrands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flights{trip: 10 * time.Millisecond}
		lanes, _ := lanesOn(t, f, 2)
		l := lanes.Of(t.Context(), "key")
		for i := range 3000 {
			l.Start(t.Context(), errandOf(i), func(any, error) {})
		}
		start := time.Now()
		_, err := newAsk("key", script.Call{}).by(l)
		require.NoError(t, err)
		assert.LessOrEqual(t, time.Since(start), 3*f.trip, "not behind all of them")
		time.Sleep(time.Minute)
	})
}

// A call that is not repeated has the time of a call for its one attempt. Decisions beside
// it are repeated after a third of that nevertheless.
func TestDecisionsBesideChangesAreRepeatedInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flights{hold: make(chan struct{})}
		lanes, _ := lanesOn(t, f, 64)
		l := lanes.Of(t.Context(), "key")
		var wg sync.WaitGroup
		ask := func(i int) {
			wg.Go(func() {
				_, err := newAsk(keyOf(i), script.Call{Repeat: true}).by(l)
				assert.NoError(t, err)
			})
			synctest.Wait()
		}
		ask(0) // and while it is under way
		for i := range 10 {
			l.Start(t.Context(), errandOf(100+i), func(any, error) {})
			ask(1 + i)
		}
		f.hang(true)
		close(f.hold)
		time.Sleep(script.DefaultTimeout / 2)
		f.hang(false)
		wg.Wait()
		time.Sleep(time.Minute)
	})
}

// A server that hangs holds a bounded number of goroutines and attempts for errands, and
// none goes unanswered for longer than a call's time.
func TestErrandsOfASilentServerEndInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flights{stuck: true}
		lanes, _ := lanesOn(t, f, 1024)
		l := lanes.Of(t.Context(), "key")
		start, before := time.Now(), runtime.NumGoroutine()
		var mu sync.Mutex
		told := 0
		const errands = 5000
		for i := range errands {
			l.Start(t.Context(), errandOf(i), func(_ any, err error) {
				mu.Lock()
				defer mu.Unlock()
				told++
				assert.ErrorIs(t, script.Outage(err), limit.ErrUnavailable)
				assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout)
			})
		}
		time.Sleep(script.DefaultTimeout / 2)
		assert.LessOrEqual(t, runtime.NumGoroutine()-before, 1000, "other tests' among them")
		time.Sleep(script.DefaultTimeout / 2)
		synctest.Wait()
		mu.Lock()
		assert.Equal(t, errands, told)
		mu.Unlock()
		assert.LessOrEqual(t, f.most(), 2*64)
		time.Sleep(time.Minute)
	})
}

// What is over is forgotten also while a server sends no answers and takes nothing more.
func TestErrandsThatAreOverAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flights{hold: make(chan struct{})}
		lanes, _ := lanesOn(t, f, 2)
		l := lanes.Of(t.Context(), "key")
		var kept []weak.Pointer[script.Keys]
		for i := range 60 {
			for j := range 100 {
				c := errandOf(100*i + j)
				kept = append(kept, weak.Make(c.Keys))
				l.Start(t.Context(), c, func(_ any, err error) { assert.ErrorIs(t, script.Outage(err), limit.ErrUnavailable) })
			}
			time.Sleep(script.DefaultTimeout)
		}
		synctest.Wait()
		runtime.GC()
		kept = slices.DeleteFunc(kept, func(p weak.Pointer[script.Keys]) bool { return p.Value() == nil })
		assert.LessOrEqual(t, len(kept), 200, "beside what is under way")
		close(f.hold)
		time.Sleep(time.Minute)
	})
}

// A caller that goes away leaves no call behind that was not sent, and learns whether it
// may have run.
func TestErrandsWhoseCallersLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flights{hold: make(chan struct{})}
		lanes, direct := lanesOn(t, f, 2)
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		failed := make([]error, 3)
		for i := range failed {
			wg.Go(func() { _, failed[i] = lanes.Run(ctx, errandOf(i)) })
			synctest.Wait()
		}
		cancel()
		wg.Wait()
		for i, err := range failed {
			assert.ErrorIs(t, err, context.Canceled)
			assert.Equal(t, i < 2, errors.Is(err, script.ErrLost), "two flights were under way")
		}
		close(f.hold)
		time.Sleep(time.Second)
		assert.Equal(t, []any{"1", "1", nil}, direct.MGet(t.Context(), keyOf(0), keyOf(1), keyOf(2)).Val())
	})
}

// A call that nobody wants any more when its turn comes is not sent.
func TestUnwantedErrands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lanes, direct := lanesOn(t, &flights{}, 2)
		for i, wanted := range []bool{true, false} {
			c := errandOf(i)
			asked := 0
			c.Wanted = func() bool { asked++; return wanted }
			_, err := lanes.Run(t.Context(), c)
			if wanted {
				assert.NoError(t, err)
			} else {
				assert.ErrorIs(t, err, script.ErrUnwanted)
			}
			assert.Equal(t, 1, asked)
		}
		assert.Equal(t, []any{"1", nil}, direct.MGet(t.Context(), keyOf(0), keyOf(1)).Val())
	})
}

// Errands do not wait for replicas, nor behind flights that do.
func TestErrandsWaitForNoReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	direct := server.Client(t, nil)
	rdb := server.Client(t, &redis.Options{PoolSize: 4})
	lanes := lane.New(script.NewConn(rdb, time.Minute), nil)
	lanes.AwaitReplicas(lane.Replicas{Count: 1, Wait: 20 * time.Second})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() { _, _ = newAsk(keyOf(i), script.Call{}).by(lanes.Of(context.Background(), "key")) })
	}
	waiting := func() bool {
		return direct.Exists(t.Context(), keyOf(0), keyOf(1), keyOf(2), keyOf(3), keyOf(4)).Val() > 0
	}
	require.Eventually(t, waiting, time.Minute, time.Millisecond)
	_, err := lanes.Run(t.Context(), errandOf(100))
	require.NoError(t, err)
	assert.Equal(t, "1", direct.Get(t.Context(), keyOf(100)).Val())
	require.NoError(t, direct.Do(t.Context(), "client", "kill", "type", "normal", "skipme", "yes").Err())
	wg.Wait()
}
