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
	synctest.Test(t, func(t *testing.T) {
		f := &flights{hold: make(chan struct{})}
		lanes, _ := lanesOn(t, f, 1024)
		l := lanes.Of(t.Context(), "key")
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				reply, err := newAsk(keyOf(i), script.Call{}).by(l)
				assert.NoError(t, err)
				assert.EqualValues(t, 1, reply)
			})
			synctest.Wait()
		}
		assert.Equal(t, []int{1, 1}, f.sizes(), "who finds the way free goes at once")
		close(f.hold)
		wg.Wait()
		sizes := f.sizes()
		assert.Len(t, sizes, 4)
		assert.Equal(t, 1000, sizes[0]+sizes[1]+sizes[2]+sizes[3])
		assert.LessOrEqual(t, max(sizes[2], sizes[3]), 512)
	})
}

func TestOneAfterTheOtherGoAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flights{}
		lanes, _ := lanesOn(t, f, 1024)
		for i := range int64(5) {
			reply, err := newAsk("key", script.Call{}).by(lanes.Of(t.Context(), "key"))
			require.NoError(t, err)
			assert.Equal(t, i+1, reply)
		}
		assert.Equal(t, []int{1, 1, 1, 1, 1}, f.sizes())
	})
}

// A pipeline that fails before it is sent, as by somebody's hook, leaves no
// command without an error.
func TestAPipelineThatFailsByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flights{hold: make(chan struct{}), fails: errors.New("not today")}
		lanes, _ := lanesOn(t, f, 1024)
		l := lanes.Of(t.Context(), "key")
		var wg sync.WaitGroup
		failed := make([]error, 10)
		for i := range failed {
			wg.Go(func() { _, failed[i] = newAsk(keyOf(i), script.Call{}).by(l) })
			synctest.Wait()
		}
		close(f.hold)
		wg.Wait()
		assert.Equal(t, []int{1, 1, 8}, f.sizes())
		for i, err := range failed {
			if i < 2 {
				assert.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, script.ErrLost)
			assert.ErrorContains(t, err, "not today")
		}
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
			synctest.Test(t, func(t *testing.T) {
				f := &flights{trip: tc.trip}
				lanes, _ := lanesOn(t, f, tc.pool)
				l := lanes.Of(t.Context(), "key")
				_, err := newAsk("key", script.Call{}).by(l)
				require.NoError(t, err)
				f.forget()
				var wg sync.WaitGroup
				for i := range 300 {
					wg.Go(func() {
						for range 3 {
							_, err := newAsk(keyOf(i), script.Call{}).by(l)
							assert.NoError(t, err)
						}
					})
					if tc.trip > 0 {
						synctest.Wait() // each finds those before it under way
					}
				}
				wg.Wait()
				if tc.trip == 0 {
					assert.LessOrEqual(t, f.most(), tc.want)
				} else {
					assert.Equal(t, tc.want, f.most())
				}
			})
		})
	}
}

// A server that is busy answers large flights late; a small one now and then tells
// how long the wire is. When the wire grows that shows a second or two later.
func TestTheShortestTripCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flights{}
		lanes, _ := lanesOn(t, f, 1024)
		l := lanes.Of(t.Context(), "key")
		one := func(trip time.Duration) {
			f.takes(trip)
			_, err := newAsk("key", script.Call{}).by(l)
			require.NoError(t, err)
		}
		most := func(callers int) int {
			f.takes(10 * time.Millisecond)
			f.forget()
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					_, err := newAsk(keyOf(i), script.Call{}).by(l)
					assert.NoError(t, err)
				})
				synctest.Wait() // each finds those before it under way
			}
			wg.Wait()
			return f.most()
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
	synctest.Test(t, func(t *testing.T) {
		f := &flights{trip: 10 * time.Millisecond}
		lanes, _ := lanesOn(t, f, 1024)
		l := lanes.Of(t.Context(), "key")
		_, err := newAsk("key", script.Call{}).by(l)
		require.NoError(t, err)
		f.hang(true)
		var wg sync.WaitGroup
		ask := func(n int) {
			for i := range n {
				wg.Go(func() {
					// Those that were not sent are told nothing: that is for whoever waits.
					if _, err := newAsk(keyOf(i), script.Call{Repeat: true}).by(l); err != nil {
						assert.ErrorIs(t, err, script.ErrLost)
						assert.True(t, script.Silent(err))
					}
				})
				synctest.Wait() // each comes by itself
			}
		}
		ask(200)
		time.Sleep(script.DefaultTimeout/3 + time.Millisecond)
		assert.LessOrEqual(t, f.most(), 64+3, "and those that show whether it answers")
		f.forget()
		ask(100)
		time.Sleep(10 * script.DefaultTimeout / 3)
		assert.GreaterOrEqual(t, len(f.sizes()), 25)
		assert.LessOrEqual(t, len(f.sizes()), 31, "one each ninth of a call's time")
		for _, size := range f.sizes() {
			assert.Equal(t, 1, size)
		}
		f.hang(false)
		wg.Go(func() {
			_, err := newAsk("key", script.Call{Repeat: true}).by(l)
			assert.NoError(t, err)
		})
		wg.Wait()
		f.forget()
		for i := range 100 {
			wg.Go(func() {
				_, err := newAsk(keyOf(i), script.Call{}).by(l)
				assert.NoError(t, err)
			})
			synctest.Wait()
		}
		wg.Wait()
		assert.Greater(t, f.most(), 2)
		time.Sleep(time.Minute)
	})
}

// A call whose answer does not come is given up when its time is over, though the
// attempts of others hold it up.
func TestOverdueCallsAreGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flights{stuck: true}
		lanes, _ := lanesOn(t, f, 1024)
		l := lanes.Of(t.Context(), "key")
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				_, err := newAsk(keyOf(i), script.Call{Repeat: true, Until: start.Add(1500 * time.Millisecond)}).by(l)
				assert.ErrorIs(t, err, script.ErrLost)
				assert.True(t, script.Silent(err))
				assert.LessOrEqual(t, time.Since(start), 2*time.Second)
			})
		}
		wg.Wait()
		assert.LessOrEqual(t, len(f.sizes()), 4)
		time.Sleep(time.Minute)
	})
}
