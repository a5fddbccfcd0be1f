package lane

import (
	"context"
	"fmt"
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
	done  chan struct{} // closed with the answer; nil while nobody waits for it

	waiter         Waiter // nil while no Watch has it
	since          time.Time
	before, behind *Pending
}

// Wait has Tell wake the caller. The source's lock is held.
func (p *Pending) Wait() { p.done = make(chan struct{}) }

// Tell says that the answer is there. The source's lock is held.
func (p *Pending) Tell() {
	p.State = Answered
	if p.done != nil {
		close(p.done)
	}
}

// Await returns when the answer is there, or the caller has left: because ctx has
// ended, then with the error of ctx, or because timeUp said so, then with timeUp's. leave
// takes the request back, and tells whether it could: not where the answer is there. timeUp is
// asked at look, where that is not zero, and tells whether the caller has left, else when
// to look again, zero for never.
func (p *Pending) Await(
	ctx context.Context, leave func() bool, look time.Time, timeUp func() (look time.Time, left bool, err error),
) (answered bool, err error) {
	var expired <-chan time.Time
	var timer *time.Timer
	if !look.IsZero() {
		timer = time.NewTimer(time.Until(look))
		defer timer.Stop()
		expired = timer.C
	}
	for {
		select {
		case <-p.done:
			return true, nil
		case <-ctx.Done():
			if leave() {
				return false, ctx.Err()
			}
			<-p.done
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
}

// NoAnswer is the error of a request that was not answered within that time.
func NoAnswer(within time.Duration, sent bool) error {
	if sent {
		return fmt.Errorf("%w: %w: no answer within %v", limit.ErrUnknownOutcome, limit.ErrUnavailable, within)
	}
	return fmt.Errorf("%w: the request could not be sent within %v", limit.ErrUnavailable, within)
}

// Done is closed with the answer.
func (p *Pending) Done() <-chan struct{} { return p.done }
