package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/words"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// grant is permits of one member that will be given back.
type grant struct {
	member    []byte // nil if none are kept
	held      *held  // the member's; nil if no other grant uses it
	permits   int64
	sent      time.Time // when they were asked for
	windowEnd int64     // epoch ms, if the value counts a fixed window
}

// held is a member of several grants. Its permits go back in one call at a time, so that a repeated
// call can tell by the permits that are left whether it has run.
type held struct {
	mu      sync.Mutex
	left    int64 // permits of the member, when last seen
	busy    bool  // a call is under way
	waiting []returning
}

// returning is a grant that waits for the next call of its member.
type returning struct {
	grant
	then func(error)
}

// share is what one request, named by its place in the batch, was granted.
type share struct {
	place   int
	permits int64
}

// grants returns what some requests of a batch were granted, and permits that were taken ahead.
func (b *batch) grants(shares []share, ahead int64, o outcome) []grant {
	all := grant{permits: ahead, sent: b.sent, windowEnd: o.windowEnd}
	var each []grant
	for _, s := range shares {
		one := all
		one.permits = s.permits
		all.permits += one.permits
		if b.member != nil && !b.rules.Merge {
			one.member = redisson.WithPermits(redisson.Later(b.member, s.place), one.permits)
			each = append(each, one)
		}
	}
	if each != nil || all.permits == 0 {
		return each
	}
	if b.member != nil {
		if b.held == nil {
			b.held = &held{left: o.Taken}
		}
		all.member, all.held = b.member, b.held
	}
	return []grant{all}
}

// giveBack returns unwanted grants, beside the limiter's other calls but before jobs: a Release would
// count them among its own. If it fails, the permits come back an interval after they were granted.
// back is closed when all is done. q.mu is held.
func (q *queue) giveBack(grants ...grant) (back <-chan struct{}) {
	done := make(chan struct{})
	q.engine.stay(q)
	q.returns++
	left := len(grants)
	for _, one := range grants {
		q.returnGrant(context.Background(), one, func(err error) {
			if err != nil {
				q.engine.givenUp(q, one.permits, err)
			}
			q.mu.Lock()
			if left--; left > 0 {
				q.mu.Unlock()
				return
			}
			q.returns--
			close(done)
			q.nudge()
			q.mu.Unlock()
			q.engine.leave(q)
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
		if err := e.Begin(); err != nil {
			return err
		}
		done := make(chan error, 1)
		q.returnGrant(ctx, one, func(err error) {
			defer e.End()
			e.freed(q.config, false)
			if err = script.Outage(err); errors.Is(err, limit.ErrUnknownOutcome) || err != nil && ctx.Err() != nil {
				e.givenUp(q, one.permits, err)
			}
			done <- err
		})
		select {
		case err := <-done:
			return e.explain(q.keys.Names(), err)
		case <-ctx.Done():
			return underWay(ctx.Err())
		}
	}
}

// returnGrant gives a grant back and then calls then with the result, on a goroutine that must not
// wait. The Redis client's hooks see ctx.
func (q *queue) returnGrant(ctx context.Context, one grant, then func(error)) {
	h := one.held
	if h == nil {
		q.sendBack(ctx, one, func(_ int64, err error) { then(err) })
		return
	}
	h.mu.Lock()
	h.waiting = append(h.waiting, returning{one, then})
	busy := h.busy
	h.busy = true
	h.mu.Unlock()
	if !busy {
		q.sendNext(ctx, h)
	}
}

// sendNext gives back all waiting grants of a member in one call.
func (q *queue) sendNext(ctx context.Context, h *held) {
	h.mu.Lock()
	all := h.waiting
	h.waiting = nil
	one := all[0].grant
	one.member, one.permits = redisson.WithPermits(one.member, h.left), 0
	h.mu.Unlock()
	for _, r := range all {
		one.permits += r.permits
	}
	q.sendBack(ctx, one, func(back int64, err error) {
		h.mu.Lock()
		h.left -= back
		h.busy = len(h.waiting) > 0
		more := h.busy
		h.mu.Unlock()
		if more {
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
		if a.Age >= 0 {
			repeated = "1"
		}
		return append(all, one.member, one.permits, repeated, formatAge(e.clock.Since(one.sent)), a.Token, own[:len(own)-4])
	})
	return c
}
