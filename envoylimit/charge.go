package envoylimit

import (
	"context"
	"errors"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
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
	a, err := c.answer(ctx, looking{of}, decide.Ask{Call: callName, Key: of.key, Figures: true})
	a.Undo = nil
	if err == nil && a.Cause == nil {
		a.Granted = a.Granted && q.permits <= a.Remaining
		if !a.Granted && q.algorithm != fixedWindow {
			a.RetryAfter, a.ResetAfter = of.waits(ctx, q)
		}
	}
	q.record(a, err)
}

// charge charges a cost, whether it is free or not, to the end even if the caller has gone. It is over if it was not free.
func (c *call) charge(ctx context.Context, q *question, of *counter) {
	ctx = context.WithoutCancel(ctx)
	ask := q.ask(of.key)
	ask.Permits = min(q.permits, q.most())
	ask.Reserve = q.algorithm != slidingLog // so that the answer can charge the rest
	a, err := c.answer(ctx, of.Asker, ask)
	rest := q.permits
	if a.Granted {
		rest -= ask.Permits
	}
	switch {
	case errors.Is(err, limit.ErrPermitsExceedRate):
		err = nil
	case err != nil || rest == 0 || a.Cause != nil: // something else answered
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
	of := c.service.counterOf(q)
	return c.domain.failed(of.release(context.WithoutCancel(ctx), q.permits))
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
