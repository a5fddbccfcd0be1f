package engine

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestUndo_WithAnEndedContextKeepsNoCloseWaiting(t *testing.T) {
	t.Parallel()
	onFar(t, 5, 0, func(t *testing.T, e *far) {
		a := e.asks(t, testLimiter("a", hourly), decide.Ask{Permits: 1, Undo: true})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, a.Undo(ctx), context.Canceled)
	})
}

// eachLeaver runs test with a caller of two limiters whose context, deadline or time for an answer ends after 100 ms.
func eachLeaver(t *testing.T, test func(t *testing.T, e *far, leave func(both []Claim) error)) {
	t.Helper()
	const after = 100 * time.Millisecond
	type row struct {
		context time.Duration // ends after that
		ask     decide.Ask
	}
	each(t, map[string]row{
		"context":  {context: after},
		"deadline": {time.Hour, decide.Ask{MayWait: true, Timeout: after}},
		"within":   {time.Hour, decide.Ask{Within: after}},
	}, func(t *testing.T, row row) {
		onFar(t, 5, 0, func(t *testing.T, e *far) {
			test(t, e, func(both []Claim) error {
				ctx, cancel := context.WithTimeout(t.Context(), row.context)
				defer cancel()
				start := time.Now()
				_, err := e.AcquireAll(ctx, both, row.ask)
				assert.LessOrEqual(t, time.Since(start), 2*after)
				return err
			})
		})
	})
}

// The call that replaces an older default takes none of its caller's time beyond the end of that, and goes on then.
func TestAcquireAll_CallerLeavesWhileTheDefaultIsReplaced(t *testing.T) {
	t.Parallel()
	eachLeaver(t, func(t *testing.T, e *far, leave func([]Claim) error) {
		since := time.Now()
		old := testLimiter("{x}a", fmt.Sprintf("10 60000 0 0 %d", since.Add(-time.Minute).UnixMicro()))
		old.Learnt = since.Add(-time.Minute)
		e.take(t, old, 1)
		var both []Claim // the first has an older default in Redis
		for _, name := range []string{"{x}a", "{x}b"} {
			l := testLimiter(name, fmt.Sprintf("20 60000 0 0 %d", since.UnixMicro()))
			l.Rate = limit.Rate{Permits: 20, Interval: time.Minute}
			both = append(both, Claim{Limiter: l, Permits: 1})
		}
		e.delays(lua.SetRate, 300*time.Millisecond)
		require.Error(t, leave(both))
		require.NoError(t, e.Close(t.Context()))
		synctest.Wait()
		assert.Equal(t, []limit.EventKind{limit.RateReplaced}, e.kinds.All())
	})
}

func TestAcquireAll_CallerLeavesWhileAnErrorIsExplained(t *testing.T) {
	t.Parallel()
	eachLeaver(t, func(t *testing.T, e *far, leave func([]Claim) error) {
		both := []Claim{{Limiter: testLimiter("{x}a", hourly), Permits: 1}, {Limiter: testLimiter("{x}b", hourly), Permits: 1}}
		require.NoError(t, e.direct.Set(t.Context(), both[0].Limiter.Config, "", 0).Err())
		e.delays(lua.Command, 10*time.Second) // with which types are asked for
		require.ErrorIs(t, leave(both), limit.ErrCorrupt)
	})
}

// Callers who share a flight leave at their own times, without a timer each.
func TestWaiters_LeaveInTimeThoughTheyShareAFlight(t *testing.T) {
	t.Parallel()
	each(t, map[string]bool{"under way": false, "not sent": true}, func(t *testing.T, held bool) {
		onFar(t, 5, 0, func(t *testing.T, e *far) {
			l := testLimiter("a", hourly)
			e.delays(lua.Acquire, 10*time.Millisecond)
			if held {
				e.delays(lua.Acquire, 2*time.Second)
			}
			for range 2 { // as many flights as may be under way
				e.Go(func() { _, _ = acquire(t.Context(), e.Engine, l, decide.Ask{Permits: 1}) })
				synctest.Wait()
			}
			start := time.Now()
			leaves := func(after time.Duration, want error, ask decide.Ask) {
				e.Go(func() {
					_, err := acquire(t.Context(), e.Engine, l, ask)
					assert.ErrorIs(t, err, want)
					assert.Equal(t, after, time.Since(start), "%+v", ask)
				})
			}
			want := limit.ErrUnknownOutcome
			if held {
				want = limit.ErrUnavailable
			}
			e.Go(func() { _, _ = acquire(t.Context(), e.Engine, l, decide.Ask{Permits: 1}) })
			leaves(150*time.Millisecond, want, decide.Ask{Permits: 1, MayWait: true, Timeout: 50 * time.Millisecond})
			leaves(120*time.Millisecond, want, decide.Ask{Permits: 1, MayWait: true, Timeout: 20 * time.Millisecond})
			leaves(70*time.Millisecond, want, decide.Ask{Permits: 1, Within: 70 * time.Millisecond})
			synctest.Wait()
			e.delays(lua.Acquire, 2*time.Second)
			e.Wait()
			if held { // otherwise the batch ends in doubt
				e.free(t, l, 97)
			}
		})
	})
}

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
				e.asks(t, l, decide.Ask{Permits: 1, MayWait: n%3 == 0})
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

// Close waits until the last queue is removed, not only until no one uses it.
func TestClose_LeavesNoQueue(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	e := newTestEngine(rdb)
	q, err := e.lock(t.Context(), testLimiter("a", hourly))
	require.NoError(t, err)
	held, free := make(chan struct{}), make(chan struct{})
	go e.queues.RemoveIf("a", func(*queue) bool { // under the lock that removing it takes
		close(held)
		<-free
		return false
	})
	<-held
	go q.unlock()
	for q.state.Load() == used {
		runtime.Gosched()
	}
	over, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, e.lanes.Close(over, nil), context.DeadlineExceeded)
	close(free)
	require.NoError(t, e.Close(t.Context()))
	assert.Empty(t, e.queues.All())
}

// startJob starts a job that does what run does.
func startJob(t *testing.T, e *far, l *Limiter, run func(j *job)) {
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
	onFar(t, 5, 0, func(t *testing.T, e *far) {
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
	})
}

// Who waits for permits that a settlement frees while a job is under way comes before the next job.
func TestSettle_FreedPermitsGoToTheLineBeforeTheNextJob(t *testing.T) {
	t.Parallel()
	onFar(t, 5, 0, func(t *testing.T, e *far) {
		l := testLimiter("a", "5 60000 0 0")
		reserved := e.asks(t, l, decide.Ask{Permits: 5, Reserve: true})
		var served atomic.Bool
		go func() { served.Store(e.asks(t, l, decide.Ask{Permits: 5, MayWait: true}).Granted) }()
		time.Sleep(300 * time.Millisecond)
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
	})
}

// leased takes permits until a lease has come, and returns how many, and how many are left of the lease.
func (e *far) leased(t *testing.T, l *Limiter) (taken, left int64) {
	t.Helper()
	for ; !l.prefetched.lasts(); taken++ {
		if !e.TakeLeased(t.Context(), l, 1) {
			e.take(t, l, 1)
		}
		require.Less(t, taken, int64(500))
		time.Sleep(time.Millisecond)
	}
	return taken, l.prefetched.current.Load().Left()
}

// A caller who ends a lease by asking for more than is left has the rest: it goes back also if the Engine closes meanwhile.
func TestLease_RestGoesBackThoughACallerFindsItDuringClose(t *testing.T) {
	t.Parallel()
	onFar(t, 5, 0, func(t *testing.T, e *far) {
		l := testLimiter("a", "1000 3600000 0 0 1")
		l.Lease = &lease.Planner{Most: 100}
		taken, left := e.leased(t, l)
		require.NoError(t, e.lanes.Close(t.Context(), func() {
			assert.False(t, e.TakeLeased(t.Context(), l, left+1))
			for _, q := range e.queues.All() {
				e.withQueue(q.config, (*queue).close)
			}
		}))
		e.free(t, l, 1000-taken)
	})
}

// Who wants more than a lease has left ends it. Its rest goes back before Redis decides, which a remembered refusal knows nothing of.
func TestLease_RestGoesBackBeforeALargerRequest(t *testing.T) {
	t.Parallel()
	onFar(t, 5, 0, func(t *testing.T, e *far) {
		const rate = 100_000
		l := testLimiter("a", "100000 3600000 0 0")
		l.Lease, l.Refusals = &lease.Planner{Most: rate}, e.NewRefusals(l.Config)
		taken, left := e.leased(t, l)
		l.Refusals.Note(1, time.Now(), l.Refusals.Now(), limit.Decision{Limit: rate, RetryAfter: time.Hour}, time.Time{})
		assert.False(t, e.TakeLeased(t.Context(), l, left+1))
		assert.Nil(t, l.prefetched.current.Load())
		assert.False(t, e.FromMemory(t.Context(), l, &decide.Ask{Permits: left + 1}, &decide.Answer{}), "the refusal is too old")
		e.take(t, l, left+1)
		e.free(t, l, rate-taken-left-1)
	})
}

func TestQueue_MovesToTheLaneOfItsKeys(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	servers := &masters{Redis: rdb, of: map[string]*redis.Client{"a": {}}}
	e := newTestEngine(servers)
	l := testLimiter("a", hourly)
	q, err := e.lock(t.Context(), l)
	require.NoError(t, err)
	q.users++ // it stays
	q.unlock()
	servers.move("a", &redis.Client{})
	moved, err := e.lock(t.Context(), l)
	require.NoError(t, err)
	assert.Same(t, q, moved)
	assert.Same(t, q, l.queue.Load(), "found without the table")
	assert.Same(t, e.lanes.To(t.Context(), "a"), q.lane.Load())
	q.users--
	q.unlock()
	require.NoError(t, e.Close(t.Context()))
}
