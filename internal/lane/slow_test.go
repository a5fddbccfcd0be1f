package lane_test

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// slow is a server that runs one script after another, and serves its connections in turn, a read of each, as Redis does.
type slow struct {
	wire time.Duration // there and back
	cost time.Duration // of a script
	pool int           // connections to it; 0: many
	lone time.Duration // later comes the answer of a script that goes alone

	died atomic.Bool // one connection

	mu   sync.Mutex
	free time.Time // when it is done with what it has
	ran  int       // scripts
}

// aTurn is how many scripts a server reads at once.
const aTurn = 32

func (s *slow) send(ctx context.Context, cmds []redis.Cmder, _ func() error) error {
	wait := func(until time.Time) error { // as a connection that keeps ctx's deadline
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return redistest.Fail(cmds, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded})
		}
	}
	wire := s.wire
	if last := cmds[len(cmds)-1].Args(); len(last) == 5 && last[4] == "dead" && !s.died.Swap(true) {
		wire = time.Minute
	}
	if err := wait(time.Now().Add(wire)); err != nil {
		return err
	}
	for rest := range slices.Chunk(cmds, aTurn) {
		s.mu.Lock()
		if now := time.Now(); s.free.Before(now) {
			s.free = now
		}
		s.free = s.free.Add(time.Duration(len(rest)) * s.cost)
		s.ran += len(rest)
		done := s.free
		s.mu.Unlock()
		if len(cmds) == 1 {
			done = done.Add(s.lone)
		}
		if err := wait(done); err != nil {
			return err
		}
	}
	for _, cmd := range cmds {
		cmd.(interface{ SetVal(val any) }).SetVal(int64(1))
	}
	return nil
}

// onSlow runs test in a bubble with the lanes to a slow server.
func onSlow(t *testing.T, s *slow, inline bool, test func(t *testing.T, lanes *lane.Lanes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		rdb := redistest.MiniClient(t, m, &redistest.Options{PoolSize: cmp.Or(s.pool, 256), ContextTimeoutEnabled: inline})
		rdb.AddHook(redistest.Hook(s.send))
		lanes := lane.New(script.NewConn(rdb, script.DefaultTimeout), nil)
		t.Cleanup(func() { assert.NoError(t, lanes.Close(context.Background(), nil)) })
		test(t, lanes)
		time.Sleep(time.Minute)
	})
}

// burst makes so many calls at once, and returns how many of them failed, and of how many of these it is in doubt whether they ran.
func burst(t *testing.T, lanes *lane.Lanes, calls int) (failed, inDoubt int) {
	t.Helper()
	var errs redistest.List[error]
	limitertest.Together(calls, func(i int) {
		c := commandOf(i)
		c.Repeat = true
		if _, err := lanes.Run(t.Context(), c); err != nil {
			errs.Add(script.Outage(err))
		}
	})
	for _, err := range errs.All() {
		assert.ErrorIs(t, err, limit.ErrUnavailable)
		if errors.Is(err, limit.ErrUnknownOutcome) {
			inDoubt++
		}
	}
	return len(errs.All()), inDoubt
}

// A server that has more to do than a third of the calls' time allows, but no more than all of it, answers all, each once.
// A pause says nothing about how fast it is after that: what it can do in the rest of the time is sent.
func TestSlowServer_AnswersBurstOfACallsTime(t *testing.T) {
	t.Parallel()
	const micro, pause = time.Microsecond, 1900 * time.Millisecond
	type row struct {
		wire, cost, pause time.Duration
		calls, pool       int
	}
	limitertest.Each(t, map[string]row{
		"near":                            {20 * micro, 400 * micro, 0, 5000, 0},
		"10 ms away":                      {10 * time.Millisecond, 400 * micro, 0, 5000, 0},
		"100 ms away":                     {100 * time.Millisecond, 400 * micro, 0, 3500, 0},
		"fast, far away":                  {100 * time.Millisecond, 40 * micro, 0, 10_000, 0},
		"fast, far away, few connections": {100 * time.Millisecond, 40 * micro, 0, 20_000, 20},
		"near, after a pause":             {20 * micro, 20 * micro, pause, 5000, 0},
		"10 ms away, after a pause":       {10 * time.Millisecond, 20 * micro, pause, 5000, 0},
		"100 ms away, after a pause":      {100 * time.Millisecond, 20 * micro, pause, 5000, 0},
	}, func(t *testing.T, tc row) {
		limitertest.Each(t, map[string]bool{"by default": false, "ContextTimeoutEnabled": true}, func(t *testing.T, inline bool) {
			s := &slow{wire: tc.wire, cost: tc.cost, pool: tc.pool}
			onSlow(t, s, inline, func(t *testing.T, lanes *lane.Lanes) {
				s.free = time.Now().Add(tc.pause)
				failed, _ := burst(t, lanes, tc.calls)
				assert.Zero(t, failed)
				if tc.pause == 0 {
					assert.Equal(t, tc.calls, s.ran)
				}
			})
		})
	})
}

// What the server can't do within the calls' time is not sent, and nothing is sent twice. How long a flight takes is an
// estimate, so that the last few may be in doubt. The rest is answered.
func TestSlowServer_IsNotAskedWhatItCantAnswerInTime(t *testing.T) {
	t.Parallel()
	s := &slow{wire: time.Millisecond, cost: 400 * time.Microsecond}
	onSlow(t, s, false, func(t *testing.T, lanes *lane.Lanes) {
		start := time.Now()
		failed, inDoubt := burst(t, lanes, 10_000)
		assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout)
		assert.Less(t, failed, 10_000-5500, "in 3 s it can do 7,500")
		assert.LessOrEqual(t, inDoubt, 5*512, "the flights under way at the end, however the goroutines took turns")
		time.Sleep(time.Second) // the server goes on with what it has
		synctest.Wait()
		assert.Equal(t, 10_000-failed+inDoubt, s.ran)
	})
}

// Answers that come when the calls were given up, but not yet repeated, count. The first of them shows that the server
// answers again: then those that have none yet are repeated.
func TestSlowServer_LateAnswersCount(t *testing.T) {
	t.Parallel()
	s := &slow{lone: time.Millisecond}
	onSlow(t, s, false, func(t *testing.T, lanes *lane.Lanes) {
		start := time.Now()
		hang := script.DefaultTimeout / 2
		s.free = start.Add(hang)
		failed, _ := burst(t, lanes, 100)
		assert.Zero(t, failed)
		assert.LessOrEqual(t, time.Since(start), hang+s.lone)
		synctest.Wait()
		assert.LessOrEqual(t, s.ran, 100+10, "the first call, which went alone, and what showed whether it answers")
	})
}

// A connection that is dead, while the server answers by others, costs its calls a third of their time.
func TestDeadConnection_CallIsRepeatedWhileOthersAreAnswered(t *testing.T) {
	t.Parallel()
	onSlow(t, &slow{wire: time.Millisecond}, false, func(t *testing.T, lanes *lane.Lanes) {
		start := time.Now()
		over := limitertest.Go(func() {
			c := commandOf(0)
			c.Repeat, c.Args = true, script.Constant{"dead"}
			assert.NoError(t, limitertest.Second(lanes.Run(t.Context(), c)))
			assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout/3+100*time.Millisecond)
		})
		for time.Since(start) < script.DefaultTimeout {
			time.Sleep(10 * time.Millisecond)
			sent := time.Now()
			c := commandOf(1)
			c.Repeat = true
			assert.NoError(t, limitertest.Second(lanes.Run(t.Context(), c)))
			assert.Equal(t, time.Millisecond, time.Since(sent))
		}
		<-over
	})
}

// A server that has answered one of a batch's calls has the time for an answer once more, but no longer.
func TestPending_TimeCountsFromTheLastAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 3 * time.Second
		start := time.Now()
		b := &lane.Batch{}
		p := &lane.Pending{Asked: start, Batch: b}
		ends := func(want time.Duration, unknown bool) {
			t.Helper()
			end, err := p.TimeUp(time.Now(), timeout)
			assert.Equal(t, want, end.Sub(start))
			assert.ErrorIs(t, err, limit.ErrUnavailable)
			assert.Equal(t, unknown, errors.Is(err, limit.ErrUnknownOutcome))
		}
		ends(timeout, false)
		p.State = lane.Sent
		ends(timeout, true)
		time.Sleep(2 * time.Second)
		b.Progressed()
		ends(5*time.Second, true)
		p.State = lane.Gathered
		ends(timeout, false)
		p.State = lane.Sent
		time.Sleep(2 * time.Second)
		b.Progressed()
		ends(2*timeout, true)
		p.Last = start.Add(time.Second)
		ends(time.Second, true)
		p.State = lane.Answered
		assert.False(t, p.Leave())
		p.State = lane.Gathered
		assert.True(t, p.Leave())
		assert.Equal(t, lane.Gone, p.State)
	})
}

type shards struct {
	script.Redis

	of map[string]*redis.Client // by key
}

func (s *shards) GetShardClientForKey(key string) (*redis.Client, error) { return s.of[key], nil }

// A decision that goes well asks for the breaker, which takes no lock.
func TestLanes_BreakerIsFoundWithoutLock(t *testing.T) {
	t.Parallel()
	a, b := &redis.Client{}, &redis.Client{}
	s := &shards{of: map[string]*redis.Client{"one": a, "two": b}}
	lanes := lane.New(script.NewConn(s, 0), nil)
	one, two := lanes.Breaker(t.Context(), "one"), lanes.Breaker(t.Context(), "two")
	assert.NotSame(t, one, two, "each master has its own")
	assert.NotSame(t, lanes.To(t.Context(), "one"), lanes.To(t.Context(), "two"))
	assert.Same(t, one, lanes.Breaker(t.Context(), "one"), "and keeps it while another is asked")
	locked := lanes.Lock(t.Context(), "two")
	defer locked.Unlock()
	assert.NotNil(t, lanes.Breaker(t.Context(), "unknown"))
	s.of["one"] = b
	assert.Same(t, two, lanes.Breaker(t.Context(), "one"), "the key has moved")
}

// The observer learns of flights that decide requests, not of changes.
func TestObserver_LearnsOfFlights(t *testing.T) {
	t.Parallel()
	onRig(t, conditions{trip: 10 * time.Millisecond}, 2, func(t *testing.T, r *rig) {
		s := &limitertest.Recorder{}
		r.lanes.Observer = observe.New(s, nil)
		told := func() []limit.Flight {
			synctest.Wait()
			return s.Flights()
		}
		r.mustAsk(t, 0)
		assert.Empty(t, told(), "it decides nothing")
		ask := func(i int) {
			a := newAsk(keyOf(i), script.Call{Repeat: true})
			a.call.Requests = 3
			_, _ = a.by(r)
		}
		r.start(3, ask)
		r.Wait()
		one := limit.Flight{Requests: 3, Calls: 1, RoundTrip: 10 * time.Millisecond}
		two := limit.Flight{Requests: 6, Calls: 2, RoundTrip: 10 * time.Millisecond}
		assert.Equal(t, []limit.Flight{one, two}, told())
		r.Loses.Store(1)
		r.start(1, ask)
		r.Wait()
		all := told()
		assert.Len(t, all, 4)
		assert.ErrorIs(t, all[2].Err, os.ErrDeadlineExceeded)
		assert.Zero(t, all[2].Repeats)
		one.Repeats = 1
		assert.Equal(t, one, all[3])
		unknown := newAsk(keyOf(0), script.Call{Script: echo, Args: script.Constant{"x"}})
		unknown.call.Requests = 1
		_, _ = unknown.by(r)
		for _, f := range told()[4:] {
			assert.NoError(t, f.Err, "the server did not know the script")
		}
	})
}

// That replicas are behind is said once, and that they keep up once they have done so for a second.
func TestReplicas_EventsSayWhetherTheyKeepUp(t *testing.T) {
	t.Parallel()
	onRig(t, conditions{}, 64, func(t *testing.T, r *rig) {
		s, confirmed := &limitertest.Recorder{}, any(nil) // what the replicas answer
		r.lanes.Observer = observe.New(s, nil)
		r.Answer(func(cmds []redis.Cmder, _ error) error {
			wait := cmds[len(cmds)-1].(script.Command)
			assert.Equal(t, []any{"wait", 2, int64(1000)}, wait.Args())
			err, _ := confirmed.(error)
			if wait.SetErr(err); err == nil {
				wait.SetVal(confirmed)
			}
			return nil
		})
		r.lanes.AwaitReplicas(lane.Replicas{Count: 2, Wait: time.Second})
		r.lane = r.lanes.To(t.Context(), "key")
		asks := func(told any, pause time.Duration, want ...limit.EventKind) {
			t.Helper()
			time.Sleep(pause)
			confirmed = told
			a := newAsk("key", script.Call{})
			a.call.Requests = 1 // it decides, so it waits for them
			_, _ = a.by(r)
			synctest.Wait()
			var kinds []limit.EventKind
			for _, e := range s.Events() {
				kinds = append(kinds, e.Kind)
			}
			assert.Equal(t, want, kinds)
		}
		asks(int64(2), 0)
		asks(errors.New("the answer was lost"), 0)
		asks(int64(1), 0, limit.ReplicasBehind)
		asks(redistest.AnswerError("ERR no"), 900*time.Millisecond, limit.ReplicasBehind)
		asks(int64(2), 200*time.Millisecond, limit.ReplicasBehind)
		asks(int64(2), 900*time.Millisecond, limit.ReplicasBehind, limit.ReplicasKeepUp)
		asks(int64(2), time.Minute, limit.ReplicasBehind, limit.ReplicasKeepUp)
		asks(int64(0), 0, limit.ReplicasBehind, limit.ReplicasKeepUp, limit.ReplicasBehind)
		// A repeat finds what an attempt before it was granted and writes nothing, so WAIT says nothing about that.
		r.Loses.Store(2)
		confirmed = int64(2)
		again := newAsk("key", script.Call{Repeat: true})
		again.call.Requests = 1
		_, _ = again.by(r)
		assert.ErrorIs(t, again.call.Short, limit.ErrNotReplicated)
		assert.ErrorContains(t, again.call.Short, "too often")
		r.Answer(func(cmds []redis.Cmder, _ error) error {
			assert.Len(t, cmds, 1, "what decides nothing does not wait for them")
			return nil
		})
		_, _ = newAsk("key", script.Call{}).by(r)
	})
}

// Masters that come and go leave no more than so many lanes behind.
func TestLanes_OfManyMastersAreForgotten(t *testing.T) {
	t.Parallel()
	s := &shards{of: map[string]*redis.Client{"one": {}}}
	lanes := lane.New(script.NewConn(s, 0), nil)
	one := lanes.Breaker(t.Context(), "one")
	for range 2048 {
		s.of["another"] = &redis.Client{}
		lanes.Breaker(t.Context(), "another")
	}
	assert.NotSame(t, one, lanes.Breaker(t.Context(), "one"))
}

func TestDetached_GoesOnAndSaysThatItsCallerLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := lane.Detached(t.Context(), time.Second, func(ctx context.Context) error {
			time.Sleep(time.Minute)
			assert.NoError(t, ctx.Err())
			return nil
		})
		assert.Equal(t, time.Second+time.Millisecond, time.Since(start))
		assert.ErrorIs(t, err, limit.ErrUnknownOutcome)
		time.Sleep(time.Minute)
	})
}
