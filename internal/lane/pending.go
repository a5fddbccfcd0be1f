package lane

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// State is how far a caller's request has come. Its source's lock guards it.
type State int

// The states in their order.
const (
	Gathered State = iota
	Sent
	Gone // the caller went away while its request was on its way
	Answered
)

// Pending is a caller's request that waits for its answer.
type Pending struct {
	State State
	told  atomic.Bool // the answer is there
	wave  *Wave       // wakes the caller; nil while it does not wait
	own   Wave        // what wave is if nobody else waits on it

	waiter         Waiter // nil while no Watch has it
	since          time.Time
	before, behind *Pending
}

// Wave wakes all callers whose requests go with one flight: a channel for each would cost
// more. It is made anew for each flight, since channels of a bubble of testing/synctest must
// not leave it.
type Wave struct {
	done chan struct{}
	over atomic.Bool
}

func newWave() *Wave { return &Wave{done: make(chan struct{})} }

// End wakes those who wait, also those whose answer is not there yet.
func (w *Wave) End() {
	if w != nil && w.over.CompareAndSwap(false, true) {
		close(w.done)
	}
}

// Wait has Tell wake the caller. The source's lock is held.
func (p *Pending) Wait() { p.WaitOn(nil) }

// WaitOn is Wait for a caller who waits beside others, on that Wave if it is not nil.
func (p *Pending) WaitOn(w *Wave) {
	if w == nil {
		w = &p.own
		w.done = make(chan struct{})
		w.over.Store(false)
	}
	p.wave = w
}

// Tell says that the answer is there. The source's lock is held.
func (p *Pending) Tell() { p.TellBefore(nil) }

// TellBefore is Tell before that Wave ends, so that others on it sleep on until then.
func (p *Pending) TellBefore(w *Wave) {
	wave := p.wave // once told, the caller may use p anew
	p.State = Answered
	p.told.Store(true)
	if wave != w {
		wave.End()
	}
}

// Await returns when the answer is there, or the caller has left: because ctx has
// ended, then with the error of ctx, or because timeUp said so, then with timeUp's. mu is
// the source's lock. leave takes the request back, and reports whether it could: not if the
// answer is there. timeUp is asked at look, if that is not zero, and reports whether the caller
// has left, else when to look again, zero for never.
func (p *Pending) Await(
	ctx context.Context, mu *sync.Mutex, leave func() bool, look time.Time,
	timeUp func() (look time.Time, left bool, err error),
) (answered bool, err error) {
	if p.wave == nil {
		p.waitAlone(mu)
	}
	var expired <-chan time.Time
	var timer *time.Timer
	if !look.IsZero() {
		timer = time.NewTimer(time.Until(look))
		defer timer.Stop()
		expired = timer.C
	}
	for !p.told.Load() {
		select {
		case <-p.wave.done:
			p.waitAlone(mu) // if it was others' answers that came
		case <-ctx.Done():
			if leave() {
				return false, ctx.Err()
			}
		case <-expired:
			look, left, err := timeUp()
			if left {
				return false, err
			}
			if !look.IsZero() {
				timer.Reset(time.Until(look))
			}
		}
	}
	if p.wave == &p.own {
		<-p.own.done // Tell is done with it
	}
	return true, nil
}

// waitAlone is Wait unless the answer is there.
func (p *Pending) waitAlone(mu *sync.Mutex) {
	if p.told.Load() {
		return
	}
	mu.Lock()
	defer mu.Unlock()
	if p.State != Answered {
		p.Wait()
	}
}

// NoAnswer is the error of a request that was not answered within that time.
func NoAnswer(within time.Duration, sent bool) error {
	if sent {
		return fmt.Errorf("%w: %w: no answer within %v", limit.ErrUnknownOutcome, limit.ErrUnavailable, within)
	}
	return fmt.Errorf("%w: the request could not be sent within %v", limit.ErrUnavailable, within)
}
