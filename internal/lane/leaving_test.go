package lane_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Those whose callers go away are not kept until a flight takes them: with a server that is slow to answer that may be
// long. The others are sent.
func TestCommands_CancelledAreForgottenBeforeTheNextFlight(t *testing.T) {
	t.Parallel()
	onRig(t, &flights{held: true}, 2, func(t *testing.T, r *rig) {
		const stay = 10
		call := func(i int) {
			_, err := r.lanes.Run(t.Context(), commandOf(i))
			assert.NoError(t, err)
		}
		r.start(stay/2, call) // the first is all that may be under way
		ctx, cancel := context.WithCancel(t.Context())
		var kept []weak.Pointer[script.Keys]
		for i := range 1000 {
			c := &lane.Call{Call: *commandOf(stay + i), Late: func(c *lane.Call) { assert.Nil(t, c) }}
			c.Repeat = i%2 == 0
			kept = append(kept, weak.Make(c.Keys))
			go func() {
				_, err := r.lanes.Do(ctx, c)
				assert.ErrorIs(t, err, context.Canceled)
			}()
		}
		r.start(stay/2, func(i int) { call(stay/2 + i) })
		cancel()
		synctest.Wait()
		runtime.GC()
		kept = slices.DeleteFunc(kept, func(p weak.Pointer[script.Keys]) bool { return p.Value() == nil })
		assert.LessOrEqual(t, len(kept), 2*stay)
		close(r.hold)
		r.Wait()
		assert.LessOrEqual(t, len(r.sizes()), 3)
	})
}

// Whether a call is wanted is asked before its first attempt, however many follow.
func TestCommands_AreWantedOnceTheyWere(t *testing.T) {
	t.Parallel()
	var losses atomic.Int32
	losses.Store(2)
	fails := func(int) error {
		if losses.Add(-1) >= 0 {
			return errors.New("the answer was lost")
		}
		return nil
	}
	onRig(t, &flights{fails: fails}, 2, func(t *testing.T, r *rig) {
		asked := 0
		c := commandOf(0)
		c.Repeat, c.Wanted = true, func() bool { asked++; return asked == 1 }
		_, err := r.lanes.Run(t.Context(), c)
		assert.NoError(t, err)
		assert.Len(t, r.sizes(), 3)
	})
}

// A change under way whose caller has gone is repeated only if Late is to learn what has become of it.
func TestCommands_OfCallersWhoLeftGoOnForLate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		repeat, late bool
		sent         int
	}{{true, true, 2}, {true, false, 1}, {false, true, 1}} {
		f := &flights{held: true, fails: func(int) error { return answered("LOADING not yet") }}
		onRig(t, f, 2, func(t *testing.T, r *rig) {
			ctx, cancel := context.WithCancel(t.Context())
			var told atomic.Int32
			c := &lane.Call{Call: *commandOf(0)}
			c.Repeat = tt.repeat
			if tt.late {
				c.Late = func(*lane.Call) { told.Add(1) }
			}
			r.start(1, func(int) {
				done, err := r.lanes.Do(ctx, c)
				assert.False(t, done)
				assert.ErrorIs(t, err, limit.ErrUnknownOutcome)
			})
			cancel()
			r.Wait()
			r.stuck.Store(true)
			close(r.hold)
			time.Sleep(script.DefaultTimeout / 4)
			assert.Len(t, r.sizes(), tt.sent)
			time.Sleep(2 * script.DefaultTimeout)
			assert.Equal(t, tt.late, told.Load() == 1)
		})
	}
}

// Nothing is in doubt about a call that only reads.
func TestCommands_ReadsThatAreNotAnsweredAreNoUnknownOutcome(t *testing.T) {
	t.Parallel()
	onRig(t, &flights{held: true}, 2, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		read := func(ctx context.Context, i int) error {
			_, err := r.lanes.Read(ctx, incr, script.KeysOf(keyOf(i)))
			assert.NotErrorIs(t, script.Outage(err), limit.ErrUnknownOutcome)
			return err
		}
		for i := range 2 { // under way, and to be sent
			r.Go(func() {
				var left *script.Left
				assert.ErrorAs(t, read(ctx, i), &left)
				assert.ErrorIs(t, left, context.Canceled)
			})
			synctest.Wait()
		}
		cancel()
		r.Wait()
		assert.ErrorIs(t, script.Outage(read(t.Context(), 2)), limit.ErrUnavailable)
		close(r.hold)
	})
}
