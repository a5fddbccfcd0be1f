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

// Each caller learns what the script decided for its request, in order.
func TestBatch_AnswersWalkTheRequests(t *testing.T) {
	t.Parallel()
	const wait, more = 30 * time.Millisecond, 70 * time.Millisecond
	answer := func(taken, remaining int64, retry time.Duration) lane.Result {
		return lane.Result{Taken: taken, Decision: limit.Decision{
			Granted: taken > 0, Limit: 10, Remaining: remaining, RetryAfter: retry, ResetAfter: time.Second,
		}}
	}
	exceeds, nothing, unasked := answer(0, 3, 0), answer(0, 3, 0), answer(0, 3, 0)
	exceeds.Exceeds, nothing.Decision.Granted, unasked.Unasked = true, true, true
	for name, tt := range map[string]struct {
		add   func(b *lane.Batch)
		taken int64
		want  []lane.Result
	}{
		"in line, the first that is refused holds up the rest": {
			func(b *lane.Batch) { b.Add(5, true, 0); b.Add(5, true, 0); b.Add(1, true, 0); b.Add(1, false, 0) }, 1,
			[]lane.Result{answer(0, 3, wait), answer(0, 3, wait), unasked, answer(1, 2, 0)},
		},
		"more than the limit, and nothing": {
			func(b *lane.Batch) { b.Add(11, false, 0); b.Add(0, false, 0) }, 0, []lane.Result{exceeds, nothing},
		},
		"up to": {
			func(b *lane.Batch) { b.AddUpTo(2); b.AddUpTo(4); b.AddUpTo(3) }, 3,
			[]lane.Result{answer(2, 1, 0), answer(1, 0, 0), answer(0, 0, more)},
		},
		"each run has its wait": {
			func(b *lane.Batch) { b.Add(4, false, 0); b.Add(4, false, 0); b.Add(5, false, 0); b.Add(3, false, 0) }, 3,
			[]lane.Result{answer(0, 3, wait), answer(0, 3, wait), answer(0, 3, more), answer(3, 0, 0)},
		},
	} {
		var b lane.Batch
		tt.add(&b)
		waits := []int64{wait.Milliseconds(), more.Milliseconds()}
		assert.Equal(t, tt.want, b.Results(nil, lane.Outcome{Limit: 10, Free: 3, Taken: tt.taken, Reset: time.Second, RetryAfters: waits}), name)
	}
	var b lane.Batch
	b.Add(1, false, 0)
	assert.False(t, b.Results(nil, lane.Outcome{})[0].Exceeds, "a limit of 0 refuses all")
}

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
