package envoylimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
)

// looking is a counter at which a call only looks. Its breaker and policy are those of all calls.
type looking struct{ *counter }

// FromMemory knows nothing: what was taken ahead is in use.
func (looking) FromMemory(context.Context, decide.Ask) (decide.Answer, bool, error) {
	return decide.Answer{}, false, nil
}

// Ask looks.
func (l looking) Ask(ctx context.Context, _ decide.Ask) (decide.Answer, error) {
	d, err := l.look(ctx)
	return decide.Answer{Decision: d, By: limit.FromRedis, Unanswered: true}, err
}

// look finds out whether more is used than the limit, or less is free than would be asked for if another limit did not refuse.
func (c *call) look(ctx context.Context, q *question, of *counter) {
	if q.permits > 0 { // what was taken ahead is free for it
		ask := q.ask(of.key)
		ask.Undo = true
		if a, known, err := of.FromMemory(ctx, ask); err == nil && known && a.Granted {
			c.toTheEnd(ctx, func(ctx context.Context) { _ = a.Undo(ctx) })
			q.record(decide.Answer{Decision: a.Decision, By: a.By}, nil)
			q.decision.Remaining += q.permits
			return
		}
	}
	a, err := c.answer(ctx, looking{of}, decide.Ask{Call: callName, Key: of.key, Figures: true})
	a.Undo = nil
	if err == nil && a.Cause == nil {
		a.Granted = a.Granted && q.permits <= a.Remaining
		if !a.Granted && q.algorithm != fixedWindow {
			waits, cancel := c.inTime(ctx)
			defer cancel()
			a.RetryAfter, a.ResetAfter = of.waits(waits, q)
		}
	}
	q.record(a, err)
}

// errLate is why the domain answers, and not Redis.
var errLate = fmt.Errorf("%w: not in the caller's time", limit.ErrUnavailable)

// chargeInTime is charge. If the caller's time ends before Redis answers, what the domain says of failures does.
func (c *call) chargeInTime(ctx context.Context, q *question, of *counter) {
	own := *q
	if c.toTheEnd(ctx, func(ctx context.Context) { c.charge(ctx, &own, of) }) {
		q.answer = own.answer
		return
	}
	a, err := c.policy.Instead(ctx, of.Asker, q.ask(of.key), false, errLate)
	a.Undo = nil
	q.record(a, err)
}

// charge charges a cost, whether it is free or not. It is over if it was not free.
func (c *call) charge(ctx context.Context, q *question, of *counter) {
	ask := q.ask(of.key)
	ask.Permits = min(q.permits, q.most())
	// So that the answer can charge the rest, and takes nothing ahead of what is reserved.
	ask.Reserve = q.algorithm != slidingLog || q.estimate > 0
	ask.UpTo = !ask.Reserve && ask.Permits > 1 // or else what is free would be taken ahead, beside the cost
	a, err := c.answer(ctx, of.Asker, ask)
	rest := q.permits
	if a.Granted {
		rest -= a.Taken
	}
	switch {
	case errors.Is(err, limit.ErrPermitsExceedRate):
		err = nil
	case err != nil || rest == 0 || a.Cause != nil: // something else answered
		a.Granted = a.Granted && (a.By != limit.FromLocal || a.Taken == ask.Permits)
		a.Settle, a.Undo = nil, nil
		q.record(a, err)
		return
	}
	switch {
	case q.algorithm == slidingLog:
		err = of.charge(ctx, rest)
	case a.Settle != nil:
		err = a.Settle(ctx, q.permits, func(error) {})
	}
	err = c.domain.failed(err)
	a.Granted, a.Remaining, a.Settle, a.Undo = false, 0, nil, nil
	if q.algorithm != fixedWindow && q.deed == always && err == nil {
		a.RetryAfter, a.ResetAfter = of.waits(ctx, q)
	}
	q.record(a, err)
}

// giveBack gives permits back.
func (c *call) giveBack(ctx context.Context, q *question) error {
	if q.permits == 0 || q.limit == 0 {
		return nil
	}
	err, of := error(nil), c.service.counterOf(q)
	ask := q.ask(of.key)
	if b := of.Breaker(ctx, ask); b.Open() && !b.Allows(of.Probe(ctx, ask), c.policy) {
		return c.domain.failed(outage.ErrNotSent)
	}
	if !c.toTheEnd(ctx, func(ctx context.Context) { err = of.release(ctx, q.permits) }) {
		return c.domain.failed(errLate)
	}
	return c.domain.failed(err)
}

// failed returns the error of what can't refuse. If the domain lets requests pass while Redis does not decide, that is none.
func (d *domain) failed(err error) error {
	if d.failure != nil && !d.closed && errors.Is(err, limit.ErrUnavailable) {
		return nil
	}
	return err
}

// settle charges what a stream has cost: in place of what was reserved, or as it is. It goes on to the end even if the
// caller has gone.
func (c *call) settle(ctx context.Context, q *question, of *counter) {
	ctx = context.WithoutCancel(ctx)
	if settle := of.settler(named(q.reservation, q.key)); settle != nil {
		q.start, q.err = time.Time{}, c.domain.failed(settle(ctx, q.permits, func(error) {}))
		return
	}
	if q.permits > 0 {
		c.charge(ctx, q, of)
		q.over = false
	}
}
