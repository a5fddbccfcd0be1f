package httplimit

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/middleware"
)

// wait is a request of a transport that waits for its permits.
type wait struct {
	*gate

	pauses *pauses
	ctx    context.Context
	start  time.Time
	waits  bool // the limiter does it

	pause  *pause
	came   uint64        // how many requests of the transport came before it, and itself
	first  chan struct{} // receives when it may be the first in line
	leads  bool          // it was the first, and the next waits until it has asked
	cancel context.CancelCauseFunc
	place  int // in pause.asking

	turn      *middleware.Turn
	questions []middleware.Question // with the answers of the last time that the limiters were asked
	verdict   middleware.Verdict
	more      time.Duration // how much longer it would have to wait, if the limiter that waits itself has refused it
	asked     bool          // at all
}

// obtain returns nil once the request has its permits and no upstream pauses it, or the reason why it
// is not sent.
func (w *wait) obtain() (err error) {
	first := &w.questions[0]
	key := first.Key
	w.pause = w.pauses.enter(key, w)
	defer w.pause.leave(w)
	w.turn = w.Turn(w.questions)
	defer w.turn.Leave()
	defer func() {
		if err != nil {
			w.undo()
		}
	}()
	for {
		if more, err := w.awaitTurn(); err != nil {
			return w.notSent(first, more, true, err)
		}
		if !w.Shadow {
			w.pause.refresh() // while the limiters are asked
		}
		if err := w.ask(); errors.Is(err, errPaused) {
			continue
		} else if err != nil {
			return w.notSent(first, w.more, false, err)
		}
		v := w.verdict
		switch {
		case w.Shadow:
			return nil
		case v.Gone:
			return w.notSent(first, 0, false, w.ctx.Err())
		case v.Refused:
			refused, d := w.refusal()
			if d == 0 {
				return w.notSent(refused, 0, false, errNever)
			}
			if more, err := w.sleep(d, refused.Limit.InFlight); err != nil {
				return w.notSent(refused, more, false, err)
			}
		case v.Closed:
			return w.notSent(first, 0, false, v.Failure)
		default:
			if err := w.awaitShared(); err != nil {
				return w.notSent(first, 0, false, err)
			}
			if w.pause.left() == 0 {
				return nil
			}
			// An upstream paused the key meanwhile. The permits would belong to another moment
			// than the one at which the request leaves.
			w.undo()
		}
	}
}

// awaitTurn waits until the key is not paused and, if the limiter serves requests in order, those that
// came before have asked. If the request's time ends before that, it returns an error and how much of
// the pause is left.
func (w *wait) awaitTurn() (more time.Duration, err error) {
	for !w.Shadow {
		left, mayAsk := w.pause.left(), true
		if w.waits {
			left, mayAsk = w.pause.turn(w)
		}
		switch {
		case left > 0:
			w.undo()
			more, err = w.sleep(left, false)
		case !mayAsk:
			err = w.awaitOthers()
		default:
			return 0, nil
		}
		if err != nil {
			return more, err
		}
	}
	return 0, nil
}

// awaitOthers waits until the request is the first in line.
func (w *wait) awaitOthers() error {
	var late <-chan time.Time
	if w.maxWait >= 0 {
		timer := time.NewTimer(time.Until(w.start.Add(w.maxWait)))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-w.first:
		return nil
	case <-late:
		return errMaxWait
	case <-w.ctx.Done():
		w.verdict.Gone = true
		return w.ctx.Err()
	}
}

// ask asks the limiters, or calls the one limiter that waits itself. The error says that it waited as long as
// it may or would have to wait longer, or is errPaused if a pause ended that.
func (w *wait) ask() error {
	kept := w.verdict.Kept
	w.asked = true
	if !w.waits {
		w.verdict = w.turn.Ask(w.ctx)
	} else if err := w.askAndWait(); err != nil {
		w.verdict.Kept = errors.Join(kept, w.verdict.Kept)
		return err
	}
	if w.verdict.Gone = w.ctx.Err() != nil; w.verdict.Gone && !w.Shadow && !w.verdict.Refused {
		w.undo()
	}
	if w.verdict.Kept == nil {
		w.verdict.Kept = kept // for the error handler, which receives only one
	}
	return nil
}

// askAndWait is ask for the limiter that waits itself.
func (w *wait) askAndWait() error {
	most := time.Duration(0)
	if w.maxWait > 0 {
		if most = w.maxWait - time.Since(w.start); most <= 0 {
			return errMaxWait
		}
	}
	ctx, cancel := context.WithCancelCause(w.ctx)
	defer cancel(nil)
	w.cancel = cancel
	asking := ctx
	if w.leads {
		asking = decide.WithEntered(ctx, func() { w.pause.asked(w) })
	}
	w.pause.asks(w)
	defer w.pause.answered(w)
	w.questions[0] = w.questions[0].Again()
	w.questions[0].AskAndWait(asking, most, false)
	if errors.Is(context.Cause(ctx), errPaused) {
		w.verdict = middleware.Verdict{}
		w.undo()
		return errPaused
	}
	if w.verdict = w.Judge(w.questions); w.verdict.Refused && w.questions[0].State == middleware.Refused {
		w.more = w.questions[0].Decision.RetryAfter
		return cmp.Or(w.tooLong(w.more), errMaxWait)
	}
	return nil
}

// undo gives back the grants, since the request does not leave now.
func (w *wait) undo() {
	w.verdict.Kept = errors.Join(w.verdict.Kept, w.GiveBack(w.ctx, w.questions))
}

// refusal returns the question for which the request has to wait the longest, and how long: 0 if no
// waiting helps.
func (w *wait) refusal() (of *middleware.Question, d time.Duration) {
	return middleware.Longest(w.questions), middleware.RetryAfter(middleware.Live(w.questions))
}

// sleep waits for d. If the request's time ends before that, it returns an error, at once if it
// knows so in advance, and how much of d is left. What is in flight may come back before d is over.
func (w *wait) sleep(d time.Duration, inFlight bool) (more time.Duration, err error) {
	if err := w.ctx.Err(); err != nil {
		w.verdict.Gone = true
		return d, err
	}
	end, sleep := time.Now().Add(d), middleware.Sleep
	if left := w.maxWait - time.Since(w.start); inFlight {
		if sleep = w.turn.Sleep; w.maxWait >= 0 && left <= 0 {
			return d, errMaxWait
		} else if w.maxWait >= 0 {
			d = min(d, left)
		}
	} else if err := w.tooLong(d); err != nil {
		return d, err
	}
	if err := sleep(w.ctx, d); err != nil {
		w.verdict.Gone = true
		return time.Until(end), err
	}
	return 0, nil
}

// tooLong returns an error if the request may not wait for d.
func (w *wait) tooLong(d time.Duration) error {
	if end, ok := w.ctx.Deadline(); ok && time.Until(end) <= d {
		return context.DeadlineExceeded
	}
	if w.maxWait >= 0 && d > w.maxWait-time.Since(w.start) { // d may be too long for a sum
		return errMaxWait
	}
	return nil
}

func (w *wait) notSent(of *middleware.Question, more time.Duration, paused bool, err error) error {
	return &NotSentError{
		Key: of.Key, Permits: of.Permits, Waited: time.Since(w.start), RetryAfter: more, Paused: paused, Err: err,
	}
}
