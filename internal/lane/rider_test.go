package lane_test

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// rider is a call that goes along with another, if it goes at all.
type rider struct {
	*ask

	goes bool
}

func (r *rider) Prepare(c *lane.Call) {
	if r.goes {
		c.Call = script.Call{Script: incr, Keys: script.KeysOf("riders"), Args: script.Constant{}, Repeat: true}
	}
}

func ridden(host *ask, goes bool) (*ask, *rider) {
	r := &rider{ask: &ask{done: make(chan struct{})}, goes: goes}
	host.call.Rider = &lane.Call{Owner: r}
	return host, r
}

// losesFirst returns flights of which the answer to the first is lost.
func losesFirst() *flights {
	var others atomic.Bool
	return &flights{trip: time.Millisecond, fails: func(int) error {
		if others.Swap(true) {
			return nil
		}
		return os.ErrDeadlineExceeded
	}}
}

// A rider goes in the flight of its call, and costs no round trip.
func TestRider_GoesAlong(t *testing.T) {
	t.Parallel()
	for name, inline := range map[string]bool{"on the caller's goroutine": true, "on another": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onRig(t, &flights{trip: time.Millisecond, inline: inline}, 20, func(t *testing.T, r *rig) {
				host, along := ridden(newAsk("host", script.Call{}), true)
				reply, err := host.by(r)
				assert.NoError(t, err)
				assert.EqualValues(t, 1, reply)
				<-along.done
				assert.EqualValues(t, 1, along.reply)
				host, _ = ridden(newAsk("host", script.Call{}), false)
				_, err = host.by(r)
				assert.NoError(t, err, "the other did not go")
				assert.Equal(t, []int{2, 1}, r.sizes())
			})
		})
	}
}

// A rider's own rider goes along, too, also if the first does not go, and no rider goes again if it is repeated.
func TestRiders_OfOneCall(t *testing.T) {
	t.Parallel()
	onRig(t, losesFirst(), 20, func(t *testing.T, r *rig) {
		host, first := ridden(newAsk("host", script.Call{Repeat: true}), true)
		second, third := &rider{ask: &ask{done: make(chan struct{})}}, &rider{ask: &ask{done: make(chan struct{})}, goes: true}
		host.call.Rider.Rider = &lane.Call{Owner: second, Rider: &lane.Call{Owner: third}}
		_, err := host.by(r)
		assert.NoError(t, err)
		for _, along := range []*rider{first, third} {
			<-along.done
			assert.NoError(t, along.err)
		}
		r.mustAsk(t, 0)
		assert.Equal(t, "2", r.direct.Get(t.Context(), "riders").Val())
	})
}

// A flight takes few riders along, so that its calls do not wait for many.
func TestRiders_AreFewInAFlight(t *testing.T) {
	t.Parallel()
	onRig(t, &flights{trip: 10 * time.Millisecond}, 2, func(t *testing.T, r *rig) {
		r.start(41, func(i int) {
			host, _ := ridden(newAsk(keyOf(i), script.Call{}), true)
			_, err := host.by(r)
			assert.NoError(t, err)
		})
		r.Wait()
		assert.Equal(t, []int{2, 40 + 16}, r.sizes())
		assert.Equal(t, "17", r.direct.Get(t.Context(), "riders").Val())
		r.forget()
		r.mustAsk(t, 0)
		assert.Equal(t, []int{1}, r.sizes(), "those that found no room do not follow")
	})
}

// If an answer is lost, each is repeated, and no rider goes twice.
func TestRider_IsRepeatedByItself(t *testing.T) {
	t.Parallel()
	onRig(t, losesFirst(), 20, func(t *testing.T, r *rig) {
		host, along := ridden(newAsk("host", script.Call{Repeat: true}), true)
		_, err := host.by(r)
		assert.NoError(t, err)
		<-along.done
		assert.NoError(t, along.err)
		assert.Equal(t, "1", r.direct.Get(t.Context(), "riders").Val())
		for range 3 {
			r.mustAsk(t, 0)
		}
		assert.Equal(t, "1", r.direct.Get(t.Context(), "riders").Val())
	})
}
