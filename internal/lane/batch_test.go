package lane_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestBatch_RunsOfEqualRequestsAreSentOnce(t *testing.T) {
	t.Parallel()
	var b lane.Batch
	for range 3 {
		assert.True(t, b.Add(2, true, 0))
	}
	assert.True(t, b.Add(2, false, 0), "does not stand in line")
	assert.True(t, b.Add(1, false, 0))
	assert.True(t, b.AddUpTo(5))
	assert.True(t, b.Add(1, false, 0), "no part of the one before")
	assert.Equal(t, lane.Batch{Sum: 15, Count: 7, Line: 3, Runs: []lane.Run{
		{Permits: 2, Count: 3, InLine: true}, {Permits: 2, Count: 1}, {Permits: 1, Count: 1}, {Permits: 1, Count: 5, UpTo: true}, {Permits: 1, Count: 1},
	}}, b)
	assert.Equal(t, []any{"2", "3", "2", "1", "1", "1", "1", "5", "1", "1"}, b.Args(nil))
	b.Reset()
	assert.Empty(t, b.Args(nil))
	assert.Equal(t, []any{"7"}, lane.NewPeek(7).Args(nil), "the permits alone")
}

func TestBatch_LastRequestForAllItCanHaveGoesAgain(t *testing.T) {
	t.Parallel()
	var b lane.Batch
	b.Add(2, false, 0)
	want := lane.Batch{Sum: b.Sum, Count: b.Count, Runs: b.Runs}
	b.AddUpTo(5)
	b.DropLast()
	assert.Equal(t, want, b)
}

func TestBatch_HasRoomForSoManyRequestsAndRuns(t *testing.T) {
	t.Parallel()
	var b, runs lane.Batch
	for range lane.MaxRequests {
		assert.True(t, b.Add(1, false, 0))
	}
	assert.False(t, b.Add(1, false, 0))
	assert.False(t, b.AddUpTo(1))
	for i := range lane.MaxRuns - 2 {
		assert.True(t, runs.Add(int64(i), false, 2))
	}
	assert.False(t, runs.Add(1, false, 2), "what is reserved")
	assert.True(t, runs.AddUpTo(1))
	assert.True(t, runs.Add(1, false, 0))
	assert.False(t, runs.Add(2, false, 0))
	assert.False(t, runs.AddUpTo(1))
	assert.True(t, runs.Add(1, false, 0), "one more of the last")
}

// gathered is a caller's request, for which a flight takes what call returns.
type gathered struct {
	lane.Pending
	sync.Mutex

	call func(l *lane.Lane) *lane.Call // nil: its source has nothing to send after all
}

func (g *gathered) NextCall(l *lane.Lane, _ time.Time) (c *lane.Call, more bool) {
	if g.call != nil {
		c = g.call(l)
	}
	return c, false
}

// leaves checks that a caller who joins a Wave leaves unanswered after that time.
func (r *rig) leaves(t *testing.T, g *gathered, after time.Duration, join func()) {
	t.Helper()
	start := time.Now()
	g.Asked = start
	g.Lock()
	join()
	g.Unlock()
	answered, err := g.Await(t.Context(), r.lanes, g, start.Add(after), false)
	assert.False(t, answered)
	assert.ErrorIs(t, err, limit.ErrUnavailable)
	assert.Equal(t, after, time.Since(start))
}

var waveTests = map[string]rigTest{
	// Who waits beside others ends in time too, also if the flight has nothing to take.
	"ends if the flight is empty": {conditions{held: true}, 1024, func(t *testing.T, r *rig) {
		r.start(2, func(i int) { _, _ = r.ask(i, script.Call{}) }) // all that may be under way
		h := &gathered{}
		r.Go(func() { r.leaves(t, h, script.DefaultTimeout, func() { h.WaitOn(r.lane.Ready(h)) }) })
		synctest.Wait()
		close(r.Hold)
		r.Wait()
	}},
	// Who comes for a source that a full flight has left behind leaves in time too, though the flight has their Wave.
	"ends in time for sources that a full flight leaves": {conditions{trip: script.DefaultTimeout / 10}, 1024, func(t *testing.T, r *rig) {
		r.start(2, func(i int) { _, _ = r.ask(i, script.Call{}) }) // all that may be under way
		r.start(511, func(i int) { _, _ = r.ask(i, script.Call{}) })
		h := &gathered{}
		wave := r.lane.Ready(h)
		time.Sleep(script.DefaultTimeout / 10)
		synctest.Wait()
		h.Last = time.Now().Add(10 * time.Millisecond)
		r.Go(func() {
			r.leaves(t, h, 10*time.Millisecond, func() {
				h.WaitOn(wave)
				r.lane.EndBy(wave, h.Last)
			})
		})
		r.Wait()
	}},
	// Flights that wait for replicas are late later, and with them the waves that callers share.
	"ends in time though flights wait for replicas": {conditions{trip: script.DefaultTimeout + replicaWait/2}, 1, func(t *testing.T, r *rig) {
		r.lanes.AwaitReplicas(lane.Replicas{Count: 1, Wait: replicaWait})
		r.lane = r.lanes.To(t.Context(), "key")
		r.start(1, func(i int) { _, _ = r.ask(i, script.Call{}) })
		time.Sleep(replicaWait + script.DefaultTimeout/8) // it is late
		call := newAsk("key", script.Call{}).call
		g := &gathered{call: func(*lane.Lane) *lane.Call { return call }}
		r.leaves(t, g, script.DefaultTimeout, func() { g.WaitOn(r.lane.Ready(g)) })
		r.Wait()
	}},
}

const replicaWait = script.DefaultTimeout / 3

func TestWave(t *testing.T) {
	t.Parallel()
	onRigs(t, waveTests)
}

// The callers of a large batch have their answers before all are woken. Those who look meanwhile sleep until it is their turn.
func TestWave_IsNotLeftForAnAnswerThatIsNotMarkedYet(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		onRig(t, conditions{}, 1024, func(t *testing.T, r *rig) {
			h := &gathered{}
			if waits { // on a Wave that ends early
				h.WaitOn(r.lane.Ready(h))
			}
			h.State = lane.Answered
			r.Go(func() {
				answered, err := h.Await(t.Context(), r.lanes, h, time.Now().Add(time.Second), false)
				assert.True(t, answered)
				assert.NoError(t, err)
			})
			synctest.Wait()
			h.Lock()
			h.MarkAnswered(nil)
			h.Unlock()
			r.Wait()
		})
	}
}

// rider is a call that goes along with another, if it goes at all.
type rider struct {
	*ask

	goes bool
}

func (r *rider) Prepare(c *lane.Call) {
	if r.goes {
		c.Call = script.Call{Script: limitertest.Incr, Keys: script.KeysOf("riders"), Args: script.Constant{}, Repeat: true}
	}
}

func ridden(host *ask, goes bool) (*ask, *rider) {
	r := &rider{ask: &ask{done: make(chan struct{})}, goes: goes}
	host.call.Rider = &lane.Call{Owner: r}
	return host, r
}

// goesAlong is a rider in the flight of its call, which costs no round trip.
func goesAlong(t *testing.T, r *rig) {
	host, along := ridden(newAsk("host", script.Call{}), true)
	reply, err := host.by(r)
	assert.NoError(t, err)
	assert.EqualValues(t, 1, reply)
	<-along.done
	assert.EqualValues(t, 1, along.reply)
	host, _ = ridden(newAsk("host", script.Call{}), false)
	_, err = host.by(r)
	assert.NoError(t, err, "the other did not go")
	assert.Equal(t, []int{2, 1}, r.Sizes())
}

var riderTests = map[string]rigTest{
	"on the caller's goroutine": {conditions{trip: time.Millisecond, inline: true}, 20, goesAlong},
	"on another":                {conditions{trip: time.Millisecond}, 20, goesAlong},
	// A rider's own rider goes along, too, also if the first does not go. If the answers are lost each is repeated, and none goes twice.
	"of one call": {conditions{trip: time.Millisecond}, 20, func(t *testing.T, r *rig) {
		r.Loses.Store(1)
		host, first := ridden(newAsk("host", script.Call{Repeat: true}), true)
		second, third := &rider{ask: &ask{done: make(chan struct{})}}, &rider{ask: &ask{done: make(chan struct{})}, goes: true}
		host.call.Rider.Rider = &lane.Call{Owner: second, Rider: &lane.Call{Owner: third}}
		_, err := host.by(r)
		assert.NoError(t, err)
		for _, along := range []*rider{first, third} {
			<-along.done
			assert.NoError(t, along.err)
		}
		for range 3 {
			r.mustAsk(t, 0)
		}
		assert.Equal(t, "2", r.direct.Get(t.Context(), "riders").Val())
	}},
	// A flight takes few riders along, so that its calls do not wait for many.
	"are few in a flight": {conditions{trip: 10 * time.Millisecond}, 2, func(t *testing.T, r *rig) {
		r.start(41, func(i int) {
			host, _ := ridden(newAsk(keyOf(i), script.Call{}), true)
			_, err := host.by(r)
			assert.NoError(t, err)
		})
		r.Wait()
		assert.Equal(t, []int{2, 40 + 16}, r.Sizes())
		assert.Equal(t, "17", r.direct.Get(t.Context(), "riders").Val())
		r.Forget()
		r.mustAsk(t, 0)
		assert.Equal(t, []int{1}, r.Sizes(), "those that found no room do not follow")
	}},
}

func TestRiders(t *testing.T) {
	t.Parallel()
	onRigs(t, riderTests)
}
