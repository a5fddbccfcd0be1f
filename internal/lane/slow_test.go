package lane_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// slow is a server that runs one script after another, and serves its connections in turn, as Redis does: each
// turn takes what a read brings.
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

// burst makes so many calls at once, and returns how many of them failed, and of how many of these it is in doubt whether
// they ran.
func burst(t *testing.T, lanes *lane.Lanes, calls int) (failed, inDoubt int) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range calls {
		all.Go(func() {
			c := commandOf(i)
			c.Repeat = true
			if _, err := lanes.Run(t.Context(), c); err != nil {
				err = script.Outage(err)
				assert.ErrorIs(t, err, limit.ErrUnavailable)
				mu.Lock()
				defer mu.Unlock()
				failed++
				if errors.Is(err, limit.ErrUnknownOutcome) {
					inDoubt++
				}
			}
		})
	}
	all.Wait()
	return failed, inDoubt
}

// A server that has more to do than a third of the calls' time allows, but no more than all of it, answers all, each once.
func TestSlowServer_AnswersBurstOfACallsTime(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		wire, cost  time.Duration
		calls, pool int
	}{
		"near":                            {20 * time.Microsecond, 400 * time.Microsecond, 5000, 0},
		"10 ms away":                      {10 * time.Millisecond, 400 * time.Microsecond, 5000, 0},
		"100 ms away":                     {100 * time.Millisecond, 400 * time.Microsecond, 3500, 0},
		"fast, far away":                  {100 * time.Millisecond, 40 * time.Microsecond, 10_000, 0},
		"fast, far away, few connections": {100 * time.Millisecond, 40 * time.Microsecond, 20_000, 20},
	} {
		for _, inline := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ContextTimeoutEnabled %v", name, inline), func(t *testing.T) {
				t.Parallel()
				s := &slow{wire: tc.wire, cost: tc.cost, pool: tc.pool}
				onSlow(t, s, inline, func(t *testing.T, lanes *lane.Lanes) {
					failed, _ := burst(t, lanes, tc.calls)
					assert.Zero(t, failed)
					assert.Equal(t, tc.calls, s.ran)
				})
			})
		}
	}
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

// A pause says nothing about how fast the server is after it: what it can do in the rest of the calls' time is sent.
func TestSlowServer_AnswersBurstAfterPause(t *testing.T) {
	t.Parallel()
	for _, wire := range []time.Duration{20 * time.Microsecond, 10 * time.Millisecond, 100 * time.Millisecond} {
		t.Run(wire.String(), func(t *testing.T) {
			t.Parallel()
			s := &slow{wire: wire, cost: 20 * time.Microsecond}
			onSlow(t, s, false, func(t *testing.T, lanes *lane.Lanes) {
				s.free = time.Now().Add(1900 * time.Millisecond)
				failed, _ := burst(t, lanes, 5000)
				assert.Zero(t, failed)
			})
		})
	}
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
		var all sync.WaitGroup
		all.Go(func() {
			c := commandOf(0)
			c.Repeat, c.Args = true, script.Constant{"dead"}
			_, err := lanes.Run(t.Context(), c)
			assert.NoError(t, err)
			assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout/3+100*time.Millisecond)
		})
		for time.Since(start) < script.DefaultTimeout {
			time.Sleep(10 * time.Millisecond)
			sent := time.Now()
			c := commandOf(1)
			c.Repeat = true
			_, err := lanes.Run(t.Context(), c)
			assert.NoError(t, err)
			assert.Equal(t, time.Millisecond, time.Since(sent))
		}
		all.Wait()
	})
}
