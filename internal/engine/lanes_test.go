package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// masters is a client of several masters, which all have what one server has.
type masters struct {
	script.Redis

	mu sync.Mutex
	of map[string]*redis.Client // by key
}

func (m *masters) GetShardClientForKey(key string) (*redis.Client, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of[key], nil
}

func (m *masters) move(key string, to *redis.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of[key] = to
}

// With three masters, callers of two of them don't wait for a lock that is held for the third.
func TestLanes_EachHasALockOfItsOwn(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	e := newTestEngine(&masters{Redis: rdb, of: map[string]*redis.Client{"a": {}, "b": {}, "c": {}}})
	held := testLimiter("a", hourly)
	q, err := e.lock(t.Context(), held)
	require.NoError(t, err)
	for _, name := range []string{"b", "c"} {
		for range 2 {
			a, err := acquire(t.Context(), e, testLimiter(name, hourly), decide.Ask{Permits: 1})
			require.NoError(t, err)
			assert.True(t, a.Granted)
		}
	}
	q.unlock()
	a, err := acquire(t.Context(), e, held, decide.Ask{Permits: 1})
	require.NoError(t, err)
	assert.True(t, a.Granted)
	require.NoError(t, e.Close(t.Context()))
	assert.Zero(t, e.lanes.Work())
}

// A limiter's requests gather, wait and are answered while its keys move from master to master, and back.
func TestQueue_MovesWithItsKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		rdb := redistest.MiniClient(t, m, &redistest.Options{PoolSize: 4, MaxConcurrentDials: 1})
		const trip = 200 * time.Millisecond
		from, to := &redis.Client{}, &redis.Client{}
		servers := &masters{Redis: rdb, of: map[string]*redis.Client{"a": from}}
		e := newTestEngine(servers)
		l := testLimiter("a", "11 60000 0 0")
		for range 2 { // the server knows the scripts
			a, err := acquire(t.Context(), e, l, decide.Ask{Permits: 1})
			require.NoError(t, err)
			require.True(t, a.Granted)
		}
		rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			if strings.HasPrefix(cmds[0].Name(), "eval") {
				time.Sleep(trip)
			}
			return next()
		}))

		var all sync.WaitGroup
		start := time.Now()
		var ends []time.Duration
		var mu sync.Mutex
		take := func(permits int64, wait bool) {
			all.Go(func() {
				a, err := acquire(t.Context(), e, l, decide.Ask{Permits: permits, MayWait: wait})
				assert.NoError(t, err)
				assert.True(t, a.Granted)
				mu.Lock()
				defer mu.Unlock()
				ends = append(ends, time.Since(start))
			})
			synctest.Wait()
		}
		for range 5 { // the first ones are all that may be under way, the others gather
			take(1, false)
		}
		servers.move("a", to)
		take(1, false) // those that have gathered leave with it
		q := l.queue.Load()
		require.NotNil(t, q)
		assert.Same(t, e.lanes.To(t.Context(), "a"), q.lane.Load())
		all.Wait()
		assert.Less(t, ends[len(ends)-1], 2*trip, fmt.Sprint("all go at once: ", ends))

		take(5, true) // waits in line
		servers.move("a", from)
		take(4, true)
		servers.move("a", to)
		time.Sleep(time.Second)
		require.NoError(t, e.Release(t.Context(), l, 2))
		all.Wait()
		synctest.Wait()
		assert.Zero(t, e.lanes.Work())
		require.NoError(t, e.Close(t.Context()))
	})
}

// Callers come and go while their keys move: each is answered, and nothing is left behind.
func TestQueue_MovesBetweenCallers(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	both := []*redis.Client{{}, {}}
	servers := &masters{Redis: rdb, of: map[string]*redis.Client{"a": both[0], "b": both[0]}}
	e := newTestEngine(servers)
	var callers sync.WaitGroup
	for i := range 16 {
		l := testLimiter([]string{"a", "b"}[i%2], "1000000 3600000 0 0")
		callers.Go(func() {
			for n := range 50 {
				if i < 2 {
					servers.move(l.Config, both[n%2])
				}
				a, err := acquire(t.Context(), e, l, decide.Ask{Permits: 1, MayWait: n%3 == 0})
				assert.NoError(t, err)
				assert.True(t, a.Granted)
				if n%10 == 0 {
					assert.NoError(t, e.Release(t.Context(), l, 1))
				}
			}
		})
	}
	callers.Wait()
	require.NoError(t, e.Close(t.Context()))
	assert.Zero(t, e.lanes.Work())
	assert.Empty(t, e.queues.All())
}

// startJob starts a job that does what run does.
func startJob(t *testing.T, e *Engine, l *Limiter, run func(j *job)) {
	t.Helper()
	go func() {
		assert.NoError(t, e.runJob(t.Context(), l, &job{since: time.Now(), run: func(_ context.Context, j *job) error {
			j.begin()
			run(j)
			return nil
		}}))
	}()
	synctest.Wait()
}

// Of those that wait for a job one may have gone. The next job does not run beside the others.
func TestJob_RunsBesideNoTryOfSeveralLimiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		e := newTestEngine(redistest.MiniClient(t, m, &redistest.Options{PoolSize: 10}))
		a, b := testLimiter("{x}a", "10 60000 0 0"), testLimiter("{x}b", "10 60000 0 0")
		end := make(chan struct{})
		startJob(t, e, a, func(*job) { <-end })
		ctx, leave := context.WithCancel(t.Context())
		for _, ctx := range []context.Context{ctx, t.Context()} {
			go func() {
				_, _ = e.AcquireAll(ctx, []Claim{{Limiter: a, Permits: 1}, {Limiter: b, Permits: 1}}, decide.Ask{})
			}()
			synctest.Wait()
		}
		leave()
		synctest.Wait()
		startJob(t, e, a, func(j *job) {
			j.queue.lock()
			defer j.queue.unlock()
			assert.Zero(t, j.queue.beside)
		})
		close(end)
		synctest.Wait()
		require.NoError(t, e.Close(t.Context()))
	})
}

// Who waits for permits that a settlement frees while a job is under way comes before the next job.
func TestSettle_FreedPermitsGoToTheLineBeforeTheNextJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		e := newTestEngine(redistest.MiniClient(t, m, &redistest.Options{PoolSize: 10}))
		l := testLimiter("a", "5 60000 0 0")
		reserved, err := acquire(t.Context(), e, l, decide.Ask{Permits: 5, Reserve: true})
		require.NoError(t, err)
		var served atomic.Bool
		go func() {
			a, err := acquire(t.Context(), e, l, decide.Ask{Permits: 5, MayWait: true})
			assert.NoError(t, err)
			served.Store(a.Granted)
		}()
		time.Sleep(time.Second)
		end := make(chan struct{})
		startJob(t, e, l, func(*job) { <-end })
		go func() { assert.NoError(t, reserved.Settle(t.Context(), 0, func(error) {})) }()
		synctest.Wait()
		startJob(t, e, l, func(*job) {
			time.Sleep(time.Second)
			assert.True(t, served.Load())
		})
		close(end)
		time.Sleep(10 * time.Second)
		require.NoError(t, e.Close(t.Context()))
	})
}
