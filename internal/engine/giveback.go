package engine

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// grant is what is to be given back of a batch: permits of one member.
type grant struct {
	member  []byte // nil where none are kept
	permits int64
}

// grants returns what these requests, by their places in the batch, were
// granted of it, and permits that were taken ahead.
func (b *batch) grants(places []int, ahead int64, o outcome) []grant {
	all := grant{permits: ahead}
	var each []grant
	for _, place := range places {
		permits := b.requests[place].Permits
		all.permits += permits
		if b.member != nil && !b.rules.Merge {
			each = append(each, grant{redisson.WithPermits(redisson.Later(b.member, place), permits), permits})
		}
	}
	if each != nil {
		return each
	}
	if b.member != nil {
		all.member = redisson.WithPermits(b.member, o.taken)
	}
	return []grant{all}
}

// giveBack returns grants whose callers have gone, beside flights but ahead of
// turns: a Release would take them for its own. Where that fails the permits come
// back an interval after they were granted. g.mu is held.
func (g *group) giveBack(grants []grant, sent time.Time, windowEnd int64) {
	for _, one := range grants {
		g.engine.stay(g)
		g.returns++
		g.lane.Load().Go(func(ctx context.Context) {
			defer g.engine.leave(g)
			_ = script.Guard(func() error { return g.giveBackGrant(ctx, one, sent, windowEnd) })
			g.engine.announce(g.config())
			g.mu.Lock()
			g.returns--
			g.mu.Unlock()
			g.nudge()
		})
	}
}

// undo returns what gives one grant back.
func (g *group) undo(one grant, sent time.Time, windowEnd int64) func(context.Context) error {
	return func(ctx context.Context) error {
		err := g.giveBackGrant(ctx, one, sent, windowEnd)
		return g.engine.explain(g.keys.Names(), err)
	}
}

func (g *group) giveBackGrant(ctx context.Context, one grant, sent time.Time, windowEnd int64) error {
	e := g.engine
	if one.member == nil {
		_, err := script.Once(ctx, e.conn, lua.GiveBack, g.keys, "", one.permits, "", windowEnd, "", "")
		return err
	}
	own := e.ids.Next(nil, 1)
	c := script.Call{Script: lua.GiveBack, Keys: g.keys, Repeat: true}
	c.Args = script.ArgumentsFunc(func(all []any, a script.Attempt) []any {
		repeated := ""
		if a.Age >= 0 {
			repeated = "1"
		}
		return append(all, one.member, one.permits, repeated, formatAge(time.Since(sent)), a.Token, own[:len(own)-4])
	})
	_, err := c.Run(ctx, e.conn)
	return err
}
