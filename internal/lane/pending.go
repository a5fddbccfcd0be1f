package lane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// State is the state of a caller's request. It is Gathered until a flight takes it, which makes it Sent. The
// answer makes it Answered, or Gathered once more if the caller waits on in a line. A caller who leaves makes it
// Gone: if it was Gathered it is never sent, and if it was Sent, what it is granted goes back.
type State int

// The states in their order.
const (
	Gathered State = iota
	Sent
	Gone
	Answered
)

// Pending is a caller's request that waits for its answer. The lock of its Waiter guards it.
type Pending struct {
	State State
	Batch *Batch // the batch it was sent with, if that may take several calls

	wave     *Wave // wakes the caller; nil while it does not wait
	answered atomic.Bool

	Last  time.Time // the end of the caller's own time, whatever is under way; zero: none
	Asked time.Time // when the try under way began

	own Wave // the value of wave if no one else waits on it
}

// Wave wakes all callers whose requests share a flight: a channel for each would cost more. Each flight
// has a new one, since channels of a bubble of testing/synctest must not leave it.
type Wave struct {
	done chan struct{}
	over atomic.Bool
	by   atomic.Pointer[time.Time] // it ends by then, even without answers: see EndBy; nil: once its flight is late
}

// EndBy makes a Wave end at that time at the latest, when one of those who wait on it leaves: until then none of them
// needs a timer. The Wave, which may be nil, is that of the next flight, or of one under way that had no room for all.
func (l *Lane) EndBy(w *Wave, at time.Time) {
	if w == nil || w.endsBy(at) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.endsBy(at) {
		by := at // on the heap
		w.by.Store(&by)
		l.sweepBy(by)
	}
}

// endsBy reports whether a Wave ends by that time anyway.
func (w *Wave) endsBy(at time.Time) bool {
	by := w.by.Load()
	return by != nil && !at.Before(*by)
}

// endBy ends a Wave whose time is over, and makes sweep look at another one in time.
func (l *Lane) endBy(w *Wave, now time.Time) {
	if w == nil || w.over.Load() {
		return
	}
	switch by := w.by.Load(); {
	case by == nil:
	case now.Before(*by):
		l.sweepBy(*by)
	default:
		w.End()
	}
}

// End wakes those who wait, even if their answer is not there yet.
func (w *Wave) End() {
	if w != nil && w.over.CompareAndSwap(false, true) {
		close(w.done)
	}
}

// WaitOn makes MarkAnswered wake the caller, who waits beside others on that Wave if it is not nil.
func (p *Pending) WaitOn(w *Wave) {
	if w == nil {
		w = &p.own
		w.done = make(chan struct{})
		w.over.Store(false)
	}
	p.wave = w
}

// MarkAnswered records that the answer is there, and wakes the caller. One who waits on flight, which may be nil,
// sleeps on until that ends, together with all others on it.
func (p *Pending) MarkAnswered(flight *Wave) {
	wave := p.wave // after that the caller may reuse p
	p.State = Answered
	p.answered.Store(true)
	if wave != flight {
		wave.End()
	}
}

// Answered reports whether MarkAnswered has been called.
func (p *Pending) Answered() bool { return p.answered.Load() }

// Waiter is a request for whose answer a caller waits. A Pending is one, but for the lock. The other methods are called
// under that.
type Waiter interface {
	sync.Locker

	// Leave takes the request back if its caller goes away. It returns false if the answer is
	// already there.
	Leave() bool

	// TimeUp returns when the caller's time is over if nothing happens, and what the caller then gets; timeout is
	// the time for an answer.
	TimeUp(now time.Time, timeout time.Duration) (end time.Time, err error)
}

// Await returns when the answer is there, or the caller has left: with the error of ctx if that has
// ended, or with what TimeUp says. The caller starts to check its time at look; without hurry it
// first waits for the end of the Wave that it shares, which comes by the time of EndBy, and soon if the server hangs,
// unless flights wait for replicas.
func (p *Pending) Await(ctx context.Context, l *Lanes, w Waiter, look time.Time, hurry bool) (answered bool, err error) {
	if p.wave == nil {
		p.waitAlone(w)
	}
	hurry = hurry || l.replicas.Count > 0
	var expired <-chan time.Time
	var timer *time.Timer
	defer func() { // in the loop it would be on the heap
		if timer != nil {
			timer.Stop()
			l.timer.Store(timer)
		}
	}()
	for !p.answered.Load() {
		if !hurry && p.wave != &p.own && ctx.Done() == nil {
			<-p.wave.done // a plain receive costs a third of a select
			p.waitAlone(w)
			continue
		}
		if timer == nil && (hurry || p.wave == &p.own) {
			if timer = l.timer.Swap(nil); timer == nil { // a new one costs three allocations
				timer = time.NewTimer(time.Until(look))
			} else {
				timer.Reset(time.Until(look))
			}
			expired = timer.C
		}
		select {
		case <-p.wave.done:
			p.waitAlone(w) // if only others' answers came
		case <-ctx.Done():
			w.Lock()
			left := w.Leave()
			w.Unlock()
			if left {
				return false, ctx.Err()
			}
		case <-expired:
			w.Lock()
			now := time.Now()
			end, err := w.TimeUp(now, l.Conn.Timeout)
			left := !now.Before(end) && w.Leave()
			w.Unlock()
			if left {
				return false, err
			}
			timer.Reset(time.Until(end))
		}
	}
	if p.wave == &p.own {
		<-p.own.done // MarkAnswered is done with it
	}
	return true, nil
}

// ErrLate is the error of [Wait] if it is late.
var ErrLate = errors.New("late")

// Wait returns nil once done can be read, and otherwise ctx's error if that ends, or ErrLate at the time
// late. The zero time is never.
func Wait(ctx context.Context, done <-chan struct{}, late time.Time) error {
	var expired <-chan time.Time
	if !late.IsZero() {
		timer := time.NewTimer(time.Until(late))
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-done:
		return nil
	default:
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-expired:
		return ErrLate
	}
}

// Detached runs f, which goes on in the background if ctx ends or the time within, 0 for none, is over. The error
// then says so.
func Detached(ctx context.Context, within time.Duration, f func(ctx context.Context) error) error {
	done := make(chan struct{})
	var failed error
	go func() {
		defer close(done)
		failed = f(context.WithoutCancel(ctx))
	}()
	var late time.Time
	if within > 0 {
		late = time.Now().Add(within + time.Millisecond) // f may end by then with an error of its own
	}
	switch err := Wait(ctx, done, late); {
	case err == nil:
		return failed
	case errors.Is(err, ErrLate):
		return NoAnswer(within, true)
	default:
		return UnderWay(err)
	}
}

// UnderWay is the error for a caller whose ctx ended with err while its call may be done.
func UnderWay(err error) error {
	return fmt.Errorf("%w: the call was under way: %w", limit.ErrUnknownOutcome, err)
}

// Leave is [Waiter]'s, as is TimeUp.
func (p *Pending) Leave() (left bool) {
	if p.State == Answered {
		return false
	}
	p.State = Gone
	return true
}

// TimeUp is about the time for the answer. It began when the request was made, or when the server answered one of
// several calls, but in all it is twice the timeout at most.
func (p *Pending) TimeUp(now time.Time, timeout time.Duration) (end time.Time, err error) {
	since := p.Asked
	if p.State == Sent && p.Batch != nil && !p.Batch.answeredAt.IsZero() {
		since = Sooner(p.Batch.answeredAt, since.Add(timeout))
	}
	return Sooner(since.Add(timeout), p.Last), NoAnswer(now.Sub(since), p.State == Sent)
}

// Sooner returns the earlier of two times, of which zero is never.
func Sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// waitAlone makes the caller wait by itself, unless the answer is there.
func (p *Pending) waitAlone(w Waiter) {
	if p.answered.Load() {
		return
	}
	w.Lock()
	defer w.Unlock()
	if !p.answered.Load() { // it may have the answer, and not be marked yet: those of a batch are in turn
		p.WaitOn(nil)
	}
}

// NoAnswer is the error of a request that was not answered within that time.
func NoAnswer(within time.Duration, sent bool) error {
	if sent {
		return fmt.Errorf("%w: %w: no answer within %v", limit.ErrUnknownOutcome, limit.ErrUnavailable, within)
	}
	return fmt.Errorf("%w: the request could not be sent within %v", limit.ErrUnavailable, within)
}
