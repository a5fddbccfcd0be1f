package lane_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// held is a caller's request whose source has nothing to send after all.
type held struct {
	lane.Pending
	*lane.Lane
}

func (h *held) NextCall(*lane.Lane, time.Time) (c *lane.Call, more bool) { return nil, false }

// Who waits beside others ends in time too, also if the flight has nothing to take.
func TestWave_EndsIfFlightIsEmpty(t *testing.T) {
	t.Parallel()
	onRig(t, &flights{held: true}, 1024, func(t *testing.T, r *rig) {
		r.start(2, func(i int) { _, _ = r.ask(i, script.Call{}) }) // all that may be under way
		start := time.Now()
		h := &held{Lane: r.lane}
		h.Asked = start
		r.Go(func() {
			r.lane.Lock()
			h.WaitOn(r.lane.Ready(h))
			r.lane.Unlock()
			answered, err := h.Await(t.Context(), r.lanes, h, start.Add(script.DefaultTimeout), false)
			assert.False(t, answered)
			assert.ErrorIs(t, err, limit.ErrUnavailable)
			assert.Equal(t, script.DefaultTimeout, time.Since(start))
		})
		synctest.Wait()
		close(r.hold)
		r.Wait()
	})
}

// taken is a caller's request whose call a flight takes.
type taken struct {
	held
	*ask
}

func (w *taken) NextCall(l *lane.Lane, now time.Time) (c *lane.Call, more bool) {
	return w.ask.NextCall(l, now)
}

// Flights that wait for replicas are late later, and with them the waves that callers share.
func TestWave_EndsInTimeThoughFlightsWaitForReplicas(t *testing.T) {
	t.Parallel()
	const wait = script.DefaultTimeout / 3
	onRig(t, &flights{trip: script.DefaultTimeout + wait/2}, 1, func(t *testing.T, r *rig) {
		r.lanes.AwaitReplicas(lane.Replicas{Count: 1, Wait: wait})
		r.lane = r.lanes.Lock(t.Context(), "key")
		r.lane.Unlock()
		r.start(1, func(i int) { _, _ = r.ask(i, script.Call{}) })
		time.Sleep(wait + script.DefaultTimeout/8) // it is late
		start := time.Now()
		w := &taken{held: held{Lane: r.lane}, ask: newAsk("key", script.Call{})}
		w.Asked = start
		r.lane.Lock()
		w.WaitOn(r.lane.Ready(w))
		r.lane.Unlock()
		answered, err := w.Await(t.Context(), r.lanes, w, start.Add(script.DefaultTimeout), false)
		assert.False(t, answered)
		assert.ErrorIs(t, err, limit.ErrUnavailable)
		assert.Equal(t, script.DefaultTimeout, time.Since(start))
		r.Wait()
	})
}

// The callers of a large batch have their answers before all are woken. Those who look meanwhile sleep until it is their turn.
func TestWave_IsNotLeftForAnAnswerThatIsNotMarkedYet(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		onRig(t, &flights{}, 1024, func(t *testing.T, r *rig) {
			h := &held{Lane: r.lane}
			if waits { // on a Wave that ends early
				r.lane.Lock()
				h.WaitOn(r.lane.Ready(h))
				r.lane.Unlock()
			}
			h.State = lane.Answered
			r.Go(func() {
				answered, err := h.Await(t.Context(), r.lanes, h, time.Now().Add(time.Second), false)
				assert.True(t, answered)
				assert.NoError(t, err)
			})
			synctest.Wait()
			r.lane.Lock()
			h.MarkAnswered(nil)
			r.lane.Unlock()
			r.Wait()
		})
	}
}

// Who comes for a source that a full flight has left behind leaves in time too, though the flight has their Wave.
func TestWave_EndsInTimeForSourcesThatAFullFlightLeaves(t *testing.T) {
	t.Parallel()
	onRig(t, &flights{trip: script.DefaultTimeout / 10}, 1024, func(t *testing.T, r *rig) {
		r.start(2, func(i int) { _, _ = r.ask(i, script.Call{}) }) // all that may be under way
		r.start(511, func(i int) { _, _ = r.ask(i, script.Call{}) })
		h := &held{Lane: r.lane}
		r.lane.Lock()
		wave := r.lane.Ready(h)
		r.lane.Unlock()
		time.Sleep(script.DefaultTimeout / 10)
		synctest.Wait()
		start := time.Now()
		h.Asked, h.Last = start, start.Add(10*time.Millisecond)
		r.Go(func() {
			r.lane.Lock()
			h.WaitOn(wave)
			r.lane.EndBy(wave, h.Last)
			r.lane.Unlock()
			answered, err := h.Await(t.Context(), r.lanes, h, h.Last, false)
			assert.False(t, answered)
			assert.ErrorIs(t, err, limit.ErrUnavailable)
			assert.Equal(t, 10*time.Millisecond, time.Since(start))
		})
		r.Wait()
	})
}
