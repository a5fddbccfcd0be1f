package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// grant is permits of one member that are to be given back.
type grant struct {
	member    []byte // nil where none are kept
	permits   int64
	sent      time.Time // when they were asked for
	windowEnd int64     // epoch ms, where the value counts a fixed window
}

// share is what a request, by its place in the batch, was granted of it.
type share struct {
	place   int
	permits int64
}

// grants returns what some requests were granted of a batch, and permits that were taken
// ahead.
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
		all.member = redisson.WithPermits(b.member, o.Taken)
	}
	return []grant{all}
}

// giveBack returns grants that nobody wants, beside the limiter's other calls but ahead
// of turns: a Release would take them for its own. Where that fails the permits come
// back an interval after they were granted. back is closed when all is done. g.mu is
// held.
func (g *group) giveBack(grants ...grant) (back <-chan struct{}) {
	done := make(chan struct{})
	g.engine.stay(g)
	g.returns++
	left := len(grants)
	for _, one := range grants {
		g.lane.Load().Start(g.returnCall(one), func(reply any, err error) {
			if err := returned(one, reply, err); err != nil {
				g.engine.givenUp(g, one.permits, err)
			}
			g.mu.Lock()
			if left--; left > 0 {
				g.mu.Unlock()
				return
			}
			g.returns--
			close(done)
			g.nudge()
			g.mu.Unlock()
			g.engine.leave(g)
		})
	}
	return done
}

// givenUp tells the observer of permits that come back by themselves only, if they
// were taken.
func (e *Engine) givenUp(g *group, permits int64, err error) {
	e.observer.Happened(limit.Event{Kind: limit.PermitsGivenUp, Limiter: g.observed, Permits: permits, Err: err})
}

// undo returns what gives a grant back that a caller has.
func (g *group) undo(one grant) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := g.engine.call(ctx, g.keys, true, func() (any, error) {
			defer g.engine.freed(g.config, false)
			err := g.returnGrant(ctx, one)
			if errors.Is(err, limit.ErrUnknownOutcome) {
				g.engine.givenUp(g, one.permits, err)
			}
			return nil, err
		})
		return err
	}
}

func (g *group) returnGrant(ctx context.Context, one grant) error {
	reply, err := g.engine.lanes.Run(ctx, g.returnCall(one))
	return returned(one, reply, err)
}

// returned reads the answer to a give-back.
func returned(one grant, reply any, err error) error {
	if err == nil && reply == int64(-1) {
		return fmt.Errorf("%w: an answer was lost, and %d permits may still be in use for an interval", limit.ErrUnknownOutcome, one.permits)
	}
	return err
}

func (g *group) returnCall(one grant) *script.Call {
	e := g.engine
	c := &script.Call{Script: lua.GiveBack, Keys: g.keys}
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
