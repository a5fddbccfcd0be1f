package lane_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestWhatGathersGoesTogether(t *testing.T) {
	t.Parallel()
	onRig(t, &flights{held: true}, 1024, func(t *testing.T, r *rig) {
		r.start(1000, func(i int) {
			reply, err := r.ask(i, script.Call{})
			assert.NoError(t, err)
			assert.EqualValues(t, 1, reply)
		})
		assert.Equal(t, []int{1, 1}, r.sizes(), "who finds the way free goes at once")
		close(r.hold)
		r.Wait()
		sizes := r.sizes()
		assert.Len(t, sizes, 4)
		assert.Equal(t, 1000, sizes[0]+sizes[1]+sizes[2]+sizes[3])
		assert.LessOrEqual(t, max(sizes[2], sizes[3]), 512)
	})
}

// A pipeline that fails before it is sent, as by somebody's hook, leaves no
// command without an error.
func TestAPipelineThatFailsByItself(t *testing.T) {
	t.Parallel()
	fails := func(scripts int) error {
		if scripts == 1 {
			return nil
		}
		return errors.New("not today")
	}
	onRig(t, &flights{held: true, fails: fails}, 1024, func(t *testing.T, r *rig) {
		r.start(10, func(i int) {
			_, err := r.ask(i, script.Call{})
			if i < 2 {
				assert.NoError(t, err)
				return
			}
			assert.ErrorIs(t, err, script.ErrLost)
			assert.ErrorContains(t, err, "not today")
		})
		close(r.hold)
		r.Wait()
		assert.Equal(t, []int{1, 1, 8}, r.sizes())
	})
}

// Of a pipeline whose answers were lost nothing runs twice.
func TestAPipelineIsNotRepeated(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	direct := server.Client(t, nil)
	require.NoError(t, direct.ScriptLoad(t.Context(), incr.Source).Err())
	proxy := redistest.StartProxy(t, server.Addr())
	calls := 0
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if c.Name() != "evalsha" {
			return redistest.Pass
		}
		calls++
		switch calls % 7 {
		case 3:
			return redistest.DropAnswer
		case 5:
			return redistest.Cut
		}
		return redistest.Pass.After(200 * time.Microsecond)
	})
	lanes := lane.New(script.NewConn(proxy.Client(t, nil), script.DefaultTimeout), nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	answered, lost := map[int64]bool{}, int64(0)
	for range 32 {
		wg.Go(func() {
			for range 20 {
				reply, err := newAsk("key", script.Call{}).by(lanes.Of(context.Background(), "key"))
				mu.Lock()
				if err == nil {
					n, _ := reply.(int64)
					assert.False(t, answered[n], "answered twice")
					answered[n] = true
				} else {
					assert.ErrorIs(t, err, script.ErrLost)
					lost++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	proxy.Settle(t)
	ran, err := direct.Get(t.Context(), "key").Int64()
	require.NoError(t, err)
	assert.EqualValues(t, 640, int64(len(answered))+lost)
	assert.GreaterOrEqual(t, ran, int64(len(answered)))
	assert.LessOrEqual(t, ran, int64(640), "each ran once at most")
}

// As many flights are under way as the wire is long, and never more than half of
// the pool's connections.
func TestHowManyFlightsAreUnderWay(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		trip time.Duration
		pool int
		want int
	}{
		{0, 1024, 2},
		{20 * time.Microsecond, 1024, 2},
		{100 * time.Microsecond, 1024, 3},
		{time.Millisecond, 1024, 21},
		{100 * time.Millisecond, 1024, 64},
		{500 * time.Millisecond, 1024, 64},
		{100 * time.Millisecond, 20, 10},
		{100 * time.Millisecond, 5, 2},
		{100 * time.Millisecond, 2, 1},
		{100 * time.Millisecond, 1, 1},
	} {
		t.Run(fmt.Sprint(tc.trip, " ", tc.pool), func(t *testing.T) {
			t.Parallel()
			onRig(t, &flights{trip: tc.trip}, tc.pool, func(t *testing.T, r *rig) {
				r.mustAsk(t, 0)
				r.forget()
				for i := range 300 {
					r.Go(func() {
						for range 3 {
							r.mustAsk(t, i)
						}
					})
					if tc.trip > 0 {
						synctest.Wait() // each finds those before it under way
					}
				}
				r.Wait()
				if tc.trip == 0 {
					assert.LessOrEqual(t, r.most(), tc.want)
				} else {
					assert.Equal(t, tc.want, r.most())
				}
			})
		})
	}
}

// A server that is busy answers large flights late; a small one now and then tells
// how long the wire is. When the wire grows that shows a second or two later.
func TestTheShortestTripCounts(t *testing.T) {
	t.Parallel()
	onRig(t, &flights{}, 1024, func(t *testing.T, r *rig) {
		one := func(trip time.Duration) {
			r.takes(trip)
			r.mustAsk(t, 0)
		}
		most := func(callers int) int {
			r.takes(10 * time.Millisecond)
			r.forget()
			r.start(callers, func(i int) { r.mustAsk(t, i) })
			r.Wait()
			return r.most()
		}
		for range 30 {
			one(200 * time.Microsecond)
			assert.Equal(t, 5, most(10))
			one(50 * time.Millisecond)
		}
		for range 60 {
			one(50 * time.Millisecond)
		}
		assert.Equal(t, 64, most(100))
	})
}

// A server that answers nobody is asked by one call at a time, until it answers.
func TestASilentServerIsProbed(t *testing.T) {
	t.Parallel()
	onRig(t, &flights{trip: 10 * time.Millisecond}, 1024, func(t *testing.T, r *rig) {
		r.mustAsk(t, 0)
		r.hang(true)
		ask := func(i int) {
			// Those that were not sent are told nothing: that is for whoever waits.
			if _, err := r.ask(i, script.Call{Repeat: true}); err != nil {
				assert.ErrorIs(t, err, script.ErrLost)
				assert.True(t, script.Silent(err))
			}
		}
		r.start(200, ask)
		time.Sleep(script.DefaultTimeout/3 + time.Millisecond)
		assert.LessOrEqual(t, r.most(), 64+3, "and those that show whether it answers")
		r.forget()
		r.start(100, ask)
		time.Sleep(10 * script.DefaultTimeout / 3)
		assert.GreaterOrEqual(t, len(r.sizes()), 25)
		assert.LessOrEqual(t, len(r.sizes()), 31, "one each ninth of a call's time")
		for _, size := range r.sizes() {
			assert.Equal(t, 1, size)
		}
		r.hang(false)
		r.Go(func() {
			_, err := r.ask(0, script.Call{Repeat: true})
			assert.NoError(t, err)
		})
		r.Wait()
		r.forget()
		r.start(100, func(i int) { r.mustAsk(t, i) })
		r.Wait()
		assert.Greater(t, r.most(), 2)
	})
}

// A call whose answer does not come is given up when its time is over, though the
// attempts of others hold it up.
func TestOverdueCallsAreGivenUp(t *testing.T) {
	t.Parallel()
	onRig(t, &flights{stuck: true}, 1024, func(t *testing.T, r *rig) {
		start := time.Now()
		for i := range 2 {
			r.Go(func() {
				_, err := r.ask(i, script.Call{Repeat: true, Until: start.Add(1500 * time.Millisecond)})
				assert.ErrorIs(t, err, script.ErrLost)
				assert.True(t, script.Silent(err))
				assert.LessOrEqual(t, time.Since(start), 2*time.Second)
			})
		}
		r.Wait()
		assert.LessOrEqual(t, len(r.sizes()), 4)
	})
}

type expiry struct{ at time.Time }

func (e *expiry) Expire(now time.Time) { e.at = now }

// A request that comes to the Watch late, since it has waited elsewhere, ends when its
// own time is over, not with those that the Watch knew before.
func TestWatchEndsEachRequestInItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = time.Second
		var mu sync.Mutex
		w := lane.NewWatch(&mu, timeout)
		began := time.Now()
		since := []time.Duration{0, -900 * time.Millisecond, -300 * time.Millisecond, -2 * time.Second}
		expired := make([]expiry, len(since))
		mu.Lock()
		for i := range since {
			w.Add(&lane.Pending{}, &expired[i], began.Add(since[i]))
		}
		mu.Unlock()
		time.Sleep(2 * timeout)
		synctest.Wait()
		for i := range since {
			assert.Equal(t, max(0, since[i]+timeout), expired[i].at.Sub(began), "since %v", since[i])
		}
	})
}
