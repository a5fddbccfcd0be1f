package lane

import (
	"context"
	"time"
)

// task is work for a goroutine that sends flights: one call alone, or all that gathers.
type task struct {
	ctx  context.Context
	call *Call // nil: what has gathered

	errands bool // of that, errands alone
}

const (
	// nearTrip is the longest round trip for which a new goroutine, whose stack must grow, is worth
	// avoiding.
	nearTrip = 100 * time.Microsecond

	// parkTime is how long a goroutine waits for the next task.
	parkTime = 20 * time.Millisecond
)

// dispatch gives the task to a goroutine: one that waits, or a new one.
func (l *Lane) dispatch(t task) {
	select {
	case l.parked <- t:
	default:
		go l.do(t)
	}
}

func (l *Lane) do(t task) {
	timer := time.NewTimer(parkTime)
	defer timer.Stop()
	for {
		if t.call != nil {
			l.alone(t.ctx, t.call)
		} else {
			l.work(t.errands)
		}
		if !l.near.Load() {
			return
		}
		timer.Reset(parkTime)
		select {
		case t = <-l.parked:
		case <-timer.C:
			return
		case <-l.lanes.closed:
			return
		}
	}
}
