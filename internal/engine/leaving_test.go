package engine

import (
	"context"
	"fmt"
	"runtime"
	"slices"
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
	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// slow keeps the answers of one script back.
type slow struct {
	script atomic.Pointer[lua.Script]
	by     time.Duration
}

func (s *slow) send(_ context.Context, cmds []redis.Cmder, next func() error) error {
	err := next()
	if one := s.script.Load(); one != nil && slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return redistest.Calls(cmd, one.SHA) }) {
		time.Sleep(s.by)
	}
	return err
}

// answers keeps the answers of that script back from now on.
func (s *slow) answers(one *lua.Script, by time.Duration) {
	s.by = by
	s.script.Store(one)
}

// onSlow runs test in a bubble, with an Engine that reports to o and a client of the same server, which knows the scripts.
func onSlow(t *testing.T, o *observe.Observer, test func(t *testing.T, e *Engine, s *slow, rdb redistest.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		direct, m := redistest.Mini(t)
		for _, one := range []*lua.Script{lua.Acquire, lua.AcquireAll, lua.Command, lua.GiveBack, lua.SetRate} {
			require.NoError(t, direct.ScriptLoad(t.Context(), one.Source).Err())
		}
		rdb := redistest.MiniClient(t, m, &redistest.Options{PoolSize: 10})
		s := &slow{}
		rdb.AddHook(redistest.Hook(s.send))
		e := New(rdb, script.DefaultTimeout, redisson.NewestRules, redisson.NewIdentities(redisson.NewestRules.Layout), o)
		test(t, e, s, direct)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		assert.NoError(t, e.Close(ctx))
		time.Sleep(time.Minute) // calls under way end
	})
}

// newerDefaults returns two limiters, the first of which has an older default in Redis.
func newerDefaults(t *testing.T, e *Engine) []Claim {
	t.Helper()
	since := time.Now()
	old := testLimiter("{x}a", fmt.Sprintf("10 60000 0 0 %d", since.Add(-time.Minute).UnixMicro()))
	old.Learnt = since.Add(-time.Minute)
	_, err := acquire(t.Context(), e, old, decide.Ask{Permits: 1})
	require.NoError(t, err)
	var both []Claim
	for _, name := range []string{"{x}a", "{x}b"} {
		l := testLimiter(name, fmt.Sprintf("20 60000 0 0 %d", since.UnixMicro()))
		l.Rate = limit.Rate{Permits: 20, Interval: time.Minute}
		both = append(both, Claim{Limiter: l, Permits: 1})
	}
	return both
}

func assertRate(t *testing.T, e *Engine, l *Limiter, permits int64) {
	t.Helper()
	rate, err := e.Rate(t.Context(), l)
	require.NoError(t, err)
	assert.Equal(t, permits, rate.Permits)
}

func TestUndo_WithAnEndedContextKeepsNoCloseWaiting(t *testing.T) {
	t.Parallel()
	onSlow(t, nil, func(t *testing.T, e *Engine, _ *slow, _ redistest.Client) {
		a, err := acquire(t.Context(), e, testLimiter("a", hourly), decide.Ask{Permits: 1, Undo: true})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, a.Undo(ctx), context.Canceled)
	})
}

// A try whose caller has gone replaces no older default, and leaves that to the next.
func TestAcquireAll_NextCallerReplacesTheDefaultThatOneWhoLeftFound(t *testing.T) {
	t.Parallel()
	each(t, map[string]*lua.Script{
		"the try was under way": lua.AcquireAll,
		"the try waited":        lua.Acquire,
	}, func(t *testing.T, late *lua.Script) {
		onSlow(t, nil, func(t *testing.T, e *Engine, s *slow, _ redistest.Client) {
			both := newerDefaults(t, e)
			s.answers(late, 100*time.Millisecond)
			for i := range 4 { // more than the flights that leave at once
				go func() {
					_, _ = acquire(t.Context(), e, testLimiter(fmt.Sprint("{x}", i), hourly), decide.Ask{Permits: 1})
				}()
				synctest.Wait()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := e.AcquireAll(ctx, both, decide.Ask{})
			require.ErrorIs(t, err, context.DeadlineExceeded)
			time.Sleep(time.Second)
			_, err = e.AcquireAll(t.Context(), both, decide.Ask{})
			require.NoError(t, err)
			assertRate(t, e, both[0].Limiter, 20)
		})
	})
}

// recorder keeps the kinds of events.
type recorder struct {
	limit.NoObserver

	kinds redistest.List[limit.EventKind]
}

func (r *recorder) Happened(e limit.Event) { r.kinds.Add(e.Kind) }

// leaver is a caller of two limiters whose context, deadline or time for an answer ends after 100 ms.
type leaver struct {
	engine *Engine
	redis  redistest.Client
	slow   *slow
	events *recorder

	ends bool // the context does
	ask  decide.Ask
}

// leave asks, and returns the error with which the caller leaves in time.
func (l *leaver) leave(t *testing.T, both []Claim) error {
	t.Helper()
	ctx := t.Context()
	if l.ends {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
	}
	start := time.Now()
	_, err := l.engine.AcquireAll(ctx, both, l.ask)
	assert.LessOrEqual(t, time.Since(start), 200*time.Millisecond)
	return err
}

func eachLeaver(t *testing.T, test func(t *testing.T, l *leaver)) {
	t.Helper()
	each(t, map[string]*leaver{
		"context":  {ends: true},
		"deadline": {ask: decide.Ask{MayWait: true, Timeout: 100 * time.Millisecond}},
		"within":   {ask: decide.Ask{Within: 100 * time.Millisecond}},
	}, func(t *testing.T, l *leaver) {
		l.events = &recorder{}
		onSlow(t, observe.New(l.events, nil), func(t *testing.T, e *Engine, s *slow, rdb redistest.Client) {
			l.engine, l.slow, l.redis = e, s, rdb
			test(t, l)
		})
	})
}

// The call that replaces an older default takes none of its caller's time beyond the end of that, and goes on then.
func TestAcquireAll_CallerLeavesWhileTheDefaultIsReplaced(t *testing.T) {
	t.Parallel()
	eachLeaver(t, func(t *testing.T, l *leaver) {
		both := newerDefaults(t, l.engine)
		l.slow.answers(lua.SetRate, 300*time.Millisecond)
		require.Error(t, l.leave(t, both))
		require.NoError(t, l.engine.Close(t.Context()))
		synctest.Wait()
		assert.Equal(t, []limit.EventKind{limit.RateReplaced}, l.events.kinds.All())
	})
}

func TestAcquireAll_CallerLeavesWhileAnErrorIsExplained(t *testing.T) {
	t.Parallel()
	eachLeaver(t, func(t *testing.T, l *leaver) {
		both := []Claim{{Limiter: testLimiter("{x}a", hourly), Permits: 1}, {Limiter: testLimiter("{x}b", hourly), Permits: 1}}
		require.NoError(t, l.redis.Set(t.Context(), both[0].Limiter.Config, "", 0).Err())
		l.slow.answers(lua.Command, 10*time.Second) // with which types are asked for
		require.ErrorIs(t, l.leave(t, both), limit.ErrCorrupt)
	})
}

// Callers who share a flight leave at their own times, without a timer each.
func TestWaiters_LeaveInTimeThoughTheyShareAFlight(t *testing.T) {
	t.Parallel()
	each(t, map[string]bool{"under way": false, "not sent": true}, func(t *testing.T, held bool) {
		onSlow(t, nil, func(t *testing.T, e *Engine, s *slow, _ redistest.Client) {
			l := testLimiter("a", hourly)
			s.answers(lua.Acquire, 10*time.Millisecond)
			if held {
				s.answers(lua.Acquire, 2*time.Second)
			}
			var all sync.WaitGroup
			for range 2 { // as many flights as may be under way
				all.Go(func() { _, _ = acquire(t.Context(), e, l, decide.Ask{Permits: 1}) })
				synctest.Wait()
			}
			start := time.Now()
			leaves := func(after time.Duration, want error, ask decide.Ask) {
				all.Go(func() {
					_, err := acquire(t.Context(), e, l, ask)
					assert.ErrorIs(t, err, want)
					assert.Equal(t, after, time.Since(start), "%+v", ask)
				})
			}
			want := limit.ErrUnknownOutcome
			if held {
				want = limit.ErrUnavailable
			}
			all.Go(func() { _, _ = acquire(t.Context(), e, l, decide.Ask{Permits: 1}) })
			leaves(150*time.Millisecond, want, decide.Ask{Permits: 1, MayWait: true, Timeout: 50 * time.Millisecond})
			leaves(120*time.Millisecond, want, decide.Ask{Permits: 1, MayWait: true, Timeout: 20 * time.Millisecond})
			leaves(70*time.Millisecond, want, decide.Ask{Permits: 1, Within: 70 * time.Millisecond})
			synctest.Wait()
			s.answers(lua.Acquire, 2*time.Second)
			all.Wait()
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

// Callers of two limiters don't wait for a lock that is held for a third, on their master or on another.
func TestQueue_HasALockOfItsOwn(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	one := &redis.Client{}
	e := newTestEngine(&masters{Redis: rdb, of: map[string]*redis.Client{"a": one, "b": one, "c": {}}})
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
	onSlow(t, nil, func(t *testing.T, e *Engine, _ *slow, _ redistest.Client) {
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
	onSlow(t, nil, func(t *testing.T, e *Engine, _ *slow, _ redistest.Client) {
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
	})
}

// Who wants more than a lease has left ends it. Its rest goes back before Redis decides, which a remembered refusal
// knows nothing of.
func TestLease_RestGoesBackBeforeALargerRequest(t *testing.T) {
	t.Parallel()
	each(t, map[string]func(e *Engine, l *Limiter, permits int64) bool{
		"alone": func(e *Engine, l *Limiter, permits int64) bool { return e.TakeLeased(t.Context(), l, permits) },
		"with figures": func(e *Engine, l *Limiter, permits int64) bool {
			return e.FromMemory(t.Context(), l, &decide.Ask{Permits: permits, Figures: true}, &decide.Answer{})
		},
	}, func(t *testing.T, ask func(e *Engine, l *Limiter, permits int64) bool) {
		onSlow(t, nil, func(t *testing.T, e *Engine, _ *slow, rdb redistest.Client) {
			const rate = 100_000
			l := testLimiter("a", "100000 3600000 0 0")
			l.Lease, l.Refusals = &lease.Planner{Most: rate}, e.NewRefusals(l.Config)
			taken := int64(0)
			for ; !l.prefetched.lasts(); taken++ {
				_, err := acquire(t.Context(), e, l, decide.Ask{Permits: 1})
				require.NoError(t, err)
			}
			more := l.prefetched.current.Load().Left() + 1
			l.Refusals.Note(1, time.Now(), l.Refusals.Now(), limit.Decision{Limit: rate, RetryAfter: time.Hour}, time.Time{})

			assert.False(t, ask(e, l, more))
			assert.Nil(t, l.prefetched.current.Load())
			assert.False(t, e.FromMemory(t.Context(), l, &decide.Ask{Permits: more}, &decide.Answer{}), "the refusal is too old")
			a, err := acquire(t.Context(), e, l, decide.Ask{Permits: more})
			require.NoError(t, err)
			assert.True(t, a.Granted)
			require.NoError(t, e.Close(t.Context()))
			other := newTestEngine(rdb)
			free, err := other.Available(t.Context(), l)
			require.NoError(t, err)
			assert.Equal(t, rate-taken-more, free)
			assert.NoError(t, other.Close(t.Context()))
		})
	})
}

// A caller who ends a lease by asking for more than is left has the rest: it goes back also if the Engine closes meanwhile.
func TestLease_RestGoesBackThoughACallerFindsItDuringClose(t *testing.T) {
	t.Parallel()
	onSlow(t, nil, func(t *testing.T, e *Engine, _ *slow, rdb redistest.Client) {
		l := testLimiter("a", "1000 3600000 0 0 1")
		l.Lease = &lease.Planner{Most: 100}
		taken := int64(0)
		for !l.prefetched.lasts() {
			if !e.TakeLeased(t.Context(), l, 1) {
				a, err := acquire(t.Context(), e, l, decide.Ask{Permits: 1})
				require.NoError(t, err)
				require.True(t, a.Granted)
			}
			taken++
			require.Less(t, taken, int64(500))
			time.Sleep(time.Millisecond)
		}
		left := l.prefetched.current.Load().Left()
		require.NoError(t, e.lanes.Close(t.Context(), func() {
			assert.False(t, e.TakeLeased(t.Context(), l, left+1))
			for _, q := range e.queues.All() {
				e.withQueue(q.config, (*queue).close)
			}
		}))
		other := newTestEngine(rdb)
		free, err := other.Available(t.Context(), l)
		require.NoError(t, err)
		assert.Equal(t, 1000-taken, free)
		require.NoError(t, other.Close(t.Context()))
	})
}
