package lane_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// What takes no permits does not wait for replicas, also beside a call that does.
func TestReplicas_OnlyDecisionsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const wait = 100 * time.Millisecond
		_, m := redistest.Mini(t)
		rdb := redistest.MiniClient(t, m, &redistest.Options{PoolSize: 20})
		rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, _ func() error) error {
			time.Sleep(time.Millisecond)
			for _, cmd := range cmds {
				if cmd.Name() == "wait" { // the replicas have stopped
					time.Sleep(wait)
				}
				cmd.(interface{ SetVal(val any) }).SetVal(int64(0))
			}
			return nil
		}))
		lanes := lane.New(script.NewConn(rdb, script.DefaultTimeout), nil)
		lanes.AwaitReplicas(lane.Replicas{Count: 1, Wait: wait})
		t.Cleanup(func() { assert.NoError(t, lanes.Close(context.Background(), nil)) })
		var all sync.WaitGroup
		do := func(requests int, check func(took time.Duration, call *lane.Call)) {
			call := &lane.Call{Call: *commandOf(requests), Requests: requests}
			call.Repeat = true
			all.Go(func() {
				start := time.Now()
				done, err := lanes.Do(t.Context(), call)
				assert.True(t, done)
				assert.NoError(t, err)
				check(time.Since(start), call)
			})
		}
		for range 10 {
			do(1, func(took time.Duration, call *lane.Call) {
				assert.GreaterOrEqual(t, took, wait)
				assert.Error(t, call.Short)
			})
			time.Sleep(time.Millisecond)
			do(0, func(took time.Duration, call *lane.Call) {
				assert.Less(t, took, wait/2)
				assert.NoError(t, call.Short)
			})
			time.Sleep(2 * wait)
		}
		all.Wait()
	})
}

// seen is an observer of what happens to flights.
type seen struct {
	limit.Observer

	events  redistest.List[limit.Event]
	flights redistest.List[limit.Flight]
}

func (s *seen) Happened(e limit.Event) { s.events.Add(e) }

func (s *seen) Landed(f limit.Flight) { s.flights.Add(f) }

func (s *seen) kinds() (all []limit.EventKind) {
	for _, e := range s.events.All() {
		all = append(all, e.Kind)
	}
	return all
}

// onReplicated runs test on a lane whose flights wait a second for two replicas. Those answer what confirmed is.
func onReplicated(t *testing.T, f *flights, test func(t *testing.T, r *rig, s *seen, confirmed *any)) {
	t.Helper()
	onRig(t, f, 64, func(t *testing.T, r *rig) {
		s, confirmed := &seen{}, any(int64(2))
		r.lanes.Observer = observe.New(s, nil)
		r.answers = func(cmds []redis.Cmder) {
			wait := cmds[len(cmds)-1].(script.Command)
			assert.Equal(t, []any{"wait", 2, int64(1000)}, wait.Args())
			if err, failed := confirmed.(error); failed {
				wait.SetErr(err)
				return
			}
			wait.SetErr(nil)
			wait.SetVal(confirmed)
		}
		r.lanes.AwaitReplicas(lane.Replicas{Count: 2, Wait: time.Second})
		r.lane = r.lanes.Lock(t.Context(), "key")
		r.lane.Unlock()
		test(t, r, s, &confirmed)
	})
}

// decision is a call that waits for replicas: it decides a request.
func decision(key string, repeat bool) *ask {
	a := newAsk(key, script.Call{Repeat: repeat})
	a.call.Requests = 1
	return a
}

func TestReplicas_GrantCountsOnceTheyConfirmIt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		confirmed any
		want      string // nothing: the grant counts
	}{
		{int64(2), ""},
		{int64(3), ""},
		{int64(1), "1 of the 2 replicas"},
		{"two", "two of the 2 replicas"},
		{answered("ERR no"), "WAIT failed: ERR no"},
		{errors.New("the answer was lost"), "WAIT failed: the answer was lost"},
	} {
		onReplicated(t, &flights{}, func(t *testing.T, r *rig, _ *seen, confirmed *any) {
			*confirmed = tt.confirmed
			a := decision("key", false)
			reply, err := a.by(r)
			assert.NoError(t, err)
			assert.EqualValues(t, 1, reply)
			if tt.want == "" {
				assert.NoError(t, a.call.Short)
				return
			}
			assert.ErrorIs(t, a.call.Short, limit.ErrNotReplicated)
			assert.ErrorContains(t, a.call.Short, tt.want)
			assert.False(t, script.IsAnswer(a.call.Short))
		})
	}
}

// A repeat finds what an earlier attempt was granted and writes nothing, so WAIT says nothing about it.
func TestReplicas_GrantOfManyAttemptsDoesNotCount(t *testing.T) {
	t.Parallel()
	lost := 0
	fails := func(int) error {
		if lost++; lost <= 2 {
			return errors.New("the answer was lost")
		}
		return nil
	}
	onReplicated(t, &flights{fails: fails}, func(t *testing.T, r *rig, _ *seen, _ *any) {
		a := decision("key", true)
		_, err := a.by(r)
		assert.NoError(t, err)
		assert.ErrorIs(t, a.call.Short, limit.ErrNotReplicated)
		assert.ErrorContains(t, a.call.Short, "too often")
	})
}

// That they are behind is said once, and that they keep up once they have done so for a second.
func TestReplicas_EventsSayWhetherTheyKeepUp(t *testing.T) {
	t.Parallel()
	onReplicated(t, &flights{}, func(t *testing.T, r *rig, s *seen, confirmed *any) {
		asks := func(told any, wait time.Duration, want ...limit.EventKind) {
			t.Helper()
			time.Sleep(wait)
			*confirmed = told
			_, _ = decision("key", false).by(r)
			synctest.Wait()
			assert.Equal(t, want, s.kinds())
		}
		lost := errors.New("the answer was lost")
		asks(int64(2), 0)
		asks(lost, 0)
		asks(int64(1), 0, limit.ReplicasBehind)
		asks(answered("ERR no"), 900*time.Millisecond, limit.ReplicasBehind)
		asks(int64(2), 200*time.Millisecond, limit.ReplicasBehind)
		asks(int64(2), 900*time.Millisecond, limit.ReplicasBehind, limit.ReplicasKeepUp)
		asks(int64(2), time.Minute, limit.ReplicasBehind, limit.ReplicasKeepUp)
		asks(int64(0), 0, limit.ReplicasBehind, limit.ReplicasKeepUp, limit.ReplicasBehind)
	})
}
