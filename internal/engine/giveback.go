package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/words"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// giveBack returns unwanted grants, beside the limiter's other calls but before jobs: a Release would
// count them among its own. If it fails, the permits come back an interval after they were granted.
// back is closed when all is done.
func (q *queue) giveBack(grants ...grant) (back <-chan struct{}) {
	done := make(chan struct{})
	q.beside++
	left := len(grants)
	for _, one := range grants {
		q.returnGrant(context.Background(), one, func(err error) {
			if err != nil {
				q.engine.givenUp(q, one.permits, err)
			}
			if left--; left > 0 {
				return
			}
			q.beside--
			close(done)
			q.permitsFreed()
			q.tidy()
		})
	}
	return done
}

// givenUp reports permits that, if they were taken, come back only by themselves.
func (e *Engine) givenUp(q *queue, permits int64, err error) {
	e.observer.Happened(limit.Event{Kind: limit.PermitsGivenUp, Limiter: q.observed, Permits: permits, Err: err})
}

// undo returns the function that gives back a caller's grant. It goes on in the background if ctx
// ends first.
func (q *queue) undo(one grant) func(context.Context) error {
	return func(ctx context.Context) error {
		e := q.engine
		if err := ctx.Err(); err != nil {
			return err
		}
		// A give-back of the same member may be under way, and this call's time begins after it.
		late := time.Now().Add(e.conn.Timeout() + time.Millisecond)
		done := make(chan struct{})
		var failed error
		e.mu.Lock()
		if e.closed {
			e.mu.Unlock()
			return limit.ErrClosed
		}
		e.active++
		q.returnGrant(ctx, one, func(err error) {
			e.freed(q.config)
			e.active--
			e.checkOver()
			if err = script.Outage(err); errors.Is(err, limit.ErrUnknownOutcome) || err != nil && ctx.Err() != nil {
				e.givenUp(q, one.permits, err)
			}
			failed = err
			close(done)
		})
		e.mu.Unlock()
		switch err := lane.Wait(ctx, done, late); {
		case err == nil:
			return e.explain(q.keys.Names(), failed)
		case errors.Is(err, lane.ErrLate):
			return lane.NoAnswer(e.conn.Timeout(), true)
		default:
			return lane.UnderWay(err)
		}
	}
}

// returnGrant gives a grant back and then calls then with the result, on a goroutine that must not
// wait. The Redis client's hooks see ctx.
func (q *queue) returnGrant(ctx context.Context, one grant, then func(error)) {
	h := one.shared
	if h == nil {
		q.sendBack(ctx, one, func(_ int64, err error) { then(err) })
		return
	}
	h.waiting = append(h.waiting, returning{one, then})
	if !h.busy {
		h.busy = true
		q.sendNext(ctx, h)
	}
}

// sendNext gives back all waiting grants of a member in one call.
func (q *queue) sendNext(ctx context.Context, h *sharedMember) {
	all := h.waiting
	h.waiting = nil
	one := all[0].grant
	one.member, one.permits = redisson.WithPermits(one.member, h.remaining), 0
	for _, r := range all {
		one.permits += r.permits
	}
	q.sendBack(ctx, one, func(back int64, err error) {
		h.remaining -= back
		if h.busy = len(h.waiting) > 0; h.busy {
			q.sendNext(context.Background(), h)
		}
		for _, r := range all {
			r.then(err)
		}
	})
}

// sendBack makes the call, and returns how many permits it gave back.
func (q *queue) sendBack(ctx context.Context, one grant, then func(back int64, err error)) {
	q.lane.Load().Start(ctx, q.returnCall(one), func(reply any, err error) {
		if err != nil {
			then(0, err)
			return
		}
		back, err := script.Integer(reply)
		if back < 0 {
			back, err = 0, fmt.Errorf("%w: an answer was lost, and %s may still be in use for an interval",
				limit.ErrUnknownOutcome, words.Plural(one.permits, "permit"))
		}
		then(back, err)
	})
}

func (q *queue) returnCall(one grant) *script.Call {
	e := q.engine
	c := &script.Call{Script: lua.GiveBack, Keys: q.keys}
	if one.member == nil {
		c.Args = script.Constant{"", one.permits, "", one.windowEnd, "", ""}
		return c
	}
	own := e.ids.Next(nil, 1)
	c.Repeat = true
	c.Args = script.ArgumentsFunc(func(all []any, a script.Attempt) []any {
		repeated := ""
		early, _ := one.hold.words()
		if a.Age >= 0 {
			repeated = "1"
		}
		return append(all, one.member, one.permits, repeated, script.LongAge(time.Since(one.sent)), a.Token, own[:len(own)-4], early)
	})
	return c
}
