package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/words"
	"github.com/rratelimiter/rratelimiter/limit"
)

// giveBack returns unwanted grants, beside the limiter's other calls but before jobs: a Release would count them among
// its own. If it fails, the permits come back an interval after they were granted. back is closed when all is done.
func (q *queue) giveBack(grants ...grant) (back <-chan struct{}) {
	done := make(chan struct{})
	q.beside++
	go func() {
		var all sync.WaitGroup
		for _, one := range grants {
			all.Go(func() {
				if err := q.returnGrant(context.Background(), one); err != nil {
					q.engine.givenUp(q, one.permits, err)
				}
			})
		}
		all.Wait()
		q.lock()
		defer q.unlock()
		q.beside--
		close(done)
		q.changed()
	}()
	return done
}

// givenUp reports permits that, if they were taken, come back only by themselves.
func (e *Engine) givenUp(q *queue, permits int64, err error) {
	e.observer.Happened(limit.Event{Kind: limit.PermitsGivenUp, Limiter: q.observed, Permits: permits, Err: err})
}

// undo returns the function that gives back a caller's grant. It goes on in the background if ctx ends first.
func (q *queue) undo(one grant) func(context.Context) error {
	return func(caller context.Context) error {
		e := q.engine
		if err := caller.Err(); err != nil {
			return err
		}
		if err := e.lanes.Begin(); err != nil {
			return err
		}
		// A give-back of the same member may be under way, and the time of this call begins after it.
		return lane.Detached(caller, e.conn.Timeout, func(ctx context.Context) error {
			defer e.lanes.End()
			err := script.Outage(q.returnGrant(ctx, one))
			if errors.Is(err, limit.ErrUnknownOutcome) || err != nil && caller.Err() != nil {
				e.givenUp(q, one.permits, err)
			}
			e.refusals.Changed(q.config)
			e.withQueue(q.config, (*queue).changed)
			return e.explain(q.of.Keys().Names(), err)
		})
	}
}

// returnGrant gives a grant back. The Redis client's hooks see ctx.
func (q *queue) returnGrant(ctx context.Context, one grant) error {
	h := one.shared
	if h == nil {
		_, err := q.sendBack(ctx, one)
		return err
	}
	mine := &merge.Return{Permits: one.permits, Sent: one.sent, Done: make(chan struct{})}
	if h = h.Add(mine); h != nil {
		go q.returnWaiting(ctx, h)
	}
	<-mine.Done
	return mine.Err
}

// returnWaiting gives back all waiting grants of a member in one call, until there are none.
func (q *queue) returnWaiting(ctx context.Context, h *merge.Member) {
	for {
		member, remaining, all := h.Next()
		if len(all) == 0 {
			return
		}
		one := grant{member: redisson.WithPermits(member, remaining), sent: all[0].Sent}
		for _, r := range all {
			one.permits += r.Permits
			one.sent = lane.Sooner(one.sent, r.Sent)
		}
		back, err := q.sendBack(ctx, one)
		if h.WentBack(back, err) && err == nil && back < one.permits {
			err = fmt.Errorf("%w: the answer to a call that merges members was lost, and %s may be in use for an interval",
				limit.ErrUnknownOutcome, words.Plural(one.permits-back, "permit"))
		}
		for _, r := range all {
			r.Err = err
			close(r.Done)
		}
		ctx = context.Background()
	}
}

// sendBack makes the call, and returns how many permits it gave back.
func (q *queue) sendBack(ctx context.Context, one grant) (back int64, err error) {
	back, err = script.Integer(q.engine.lanes.Run(ctx, q.returnCall(one)))
	if back < 0 {
		return 0, fmt.Errorf("%w: an answer was lost, and %s may still be in use for an interval",
			limit.ErrUnknownOutcome, words.Plural(one.permits, "permit"))
	}
	return back, err
}

func (q *queue) returnCall(one grant) *script.Call {
	e := q.engine
	c := &script.Call{Script: lua.GiveBack, Keys: q.of.Keys()}
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
