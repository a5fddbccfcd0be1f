package lane_test

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// The observer learns of flights that decide requests, not of changes.
func TestFlight_IsToldToTheObserver(t *testing.T) {
	t.Parallel()
	lost := os.ErrDeadlineExceeded // no answer came
	var losses atomic.Int32
	f := &flights{trip: 10 * time.Millisecond, fails: func(int) error {
		if losses.Add(-1) >= 0 {
			return lost
		}
		return nil
	}}
	onRig(t, f, 2, func(t *testing.T, r *rig) {
		s := &seen{}
		r.lanes.Observer = observe.New(s, nil)
		told := func() []limit.Flight {
			synctest.Wait()
			return s.flights.Take()
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
		one, two := limit.Flight{Requests: 3, Calls: 1, RoundTrip: f.trip}, limit.Flight{Requests: 6, Calls: 2, RoundTrip: f.trip}
		assert.Equal(t, []limit.Flight{one, two}, told())
		losses.Store(1)
		r.start(1, ask)
		r.Wait()
		all := told()
		assert.Len(t, all, 2)
		assert.ErrorIs(t, all[0].Err, lost)
		assert.Zero(t, all[0].Repeats)
		one.Repeats = 1
		assert.Equal(t, one, all[1])
	})
}

// Whether the server answers at all is said when that changes.
func TestLane_TellsWhenTheServerFallsSilent(t *testing.T) {
	t.Parallel()
	onRig(t, &flights{}, 64, func(t *testing.T, r *rig) {
		s := &seen{}
		r.lanes.Observer = observe.New(s, nil)
		r.mustAsk(t, 0)
		r.stuck.Store(true)
		r.start(10, func(i int) { _, _ = r.ask(i, script.Call{Repeat: true}) })
		time.Sleep(script.DefaultTimeout)
		assert.Equal(t, []limit.EventKind{limit.ServerSilent}, s.kinds())
		r.stuck.Store(false)
		r.Wait()
		time.Sleep(script.DefaultTimeout)
		r.mustAsk(t, 0)
		synctest.Wait()
		assert.Equal(t, []limit.EventKind{limit.ServerSilent, limit.ServerAnswers}, s.kinds())
	})
}

func TestDetached_ErrorSaysWhyTheCallerLeft(t *testing.T) {
	t.Parallel()
	failure := errors.New("it failed")
	for _, tt := range []struct {
		takes, within, patience, after time.Duration
		want                           []error // nothing: what the call returned
	}{
		{time.Second, 0, time.Hour, time.Second, nil},
		{time.Second, time.Second, time.Hour, time.Second, nil},
		{time.Minute, time.Second, time.Hour, time.Second + time.Millisecond, []error{limit.ErrUnknownOutcome, limit.ErrUnavailable}},
		{time.Minute, 0, 2 * time.Second, 2 * time.Second, []error{limit.ErrUnknownOutcome, context.DeadlineExceeded}},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tt.patience)
			defer cancel()
			start := time.Now()
			err := lane.Detached(ctx, tt.within, func(ctx context.Context) error {
				time.Sleep(tt.takes)
				assert.NoError(t, ctx.Err(), "it goes on")
				return failure
			})
			assert.Equal(t, tt.after, time.Since(start))
			if tt.want == nil {
				assert.Equal(t, failure, err)
			}
			for _, want := range tt.want {
				assert.ErrorIs(t, err, want)
			}
			time.Sleep(tt.takes)
		})
	}
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
