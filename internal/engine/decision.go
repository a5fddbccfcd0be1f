package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// decision is what one call decides: a batch, or a try to take permits of several limiters.
type decision interface {
	prepare()                    // makes the call, with a new identity
	one(number int64) *Limiter   // the limiter with that number in an answer; nil if there is none
	finish(reply any, err error) // passes the result to the callers
}

// complete makes a decision's call again if that is due; otherwise it passes the result to the
// callers.
func (e *Engine) complete(d decision, r *redo, c *lane.Call) (again bool) {
	reply, err := c.Outcome()
	if _, short := reply.(int64); short && r.replaces == nil {
		d.finish(reply, err)
		return false
	}
	if r.replaces != nil {
		if err == nil {
			e.gaveDefault(r.replaces, r.older, reply)
			r.replaces = nil
			d.prepare()
			return true
		}
	} else if older, number, ok := olderDefault(reply); ok && d.one(number) != nil {
		l := d.one(number)
		r.replaces, r.older = l, older
		// It keeps permits in use, and has the same effect however often it runs.
		args := script.Paged(append(RateWords(l.Rate), e.rules.Keep(), e.fallback(l, time.Now())))
		*c = lane.Call{Call: script.Call{Script: lua.SetRate, Keys: l.Keys, Args: args, Repeat: true}, Owner: c.Owner, Requests: c.Requests}
		return true
	}
	switch {
	case isTaken(reply, err) && r.redraws < maxRedraws:
		r.redraws++
		e.ids.Skip()
		d.prepare()
		return true
	case isWrongType(err):
		go d.finish(reply, err)
	default:
		d.finish(reply, err)
	}
	return false
}

// isTaken reports whether the script found the call's identity at another member: those of old
// layouts are short. No answer says so if it is in doubt whether an attempt has run.
func isTaken(reply any, err error) bool {
	if err != nil {
		return !errors.Is(err, script.ErrLost) && script.Code(err) == "LATE"
	}
	return isWord(reply, "taken")
}

// gaveDefault records that the limiter's default was replaced, or another program was faster.
func (e *Engine) gaveDefault(l *Limiter, older limit.Rate, reply any) {
	e.changed(l.Config)
	l.defaultChecked(time.Now())
	if reply == int64(1) {
		e.happened(limit.Event{Kind: limit.RateReplaced, Limiter: l.Observed, Found: older, Want: l.Rate}, once)
	}
}

// gaveNoDefault returns the error for callers whose request waited for that call, which failed.
func (e *Engine) gaveNoDefault(l *Limiter, err error) error {
	e.changed(l.Config)
	return fmt.Errorf("giving the limiter the new rate of its default: %w", e.explain(l.Keys.Names(), err))
}

// OnReply passes the result to the callers. If another client's member has the same short id, or the
// limiter turned out not to be of type Overall, the batch is sent again, with a new identity.
func (b *batch) OnReply(c *lane.Call) (again bool) {
	if reply, _ := c.Outcome(); isWord(reply, "keys") && b.call.Keys != b.queue.keys {
		b.limiter().overall.Store(nil)
		b.prepare()
		return true
	}
	return b.queue.engine.complete(b, &b.redo, c)
}

// one returns the only limiter, whatever number the answer has.
func (b *batch) one(int64) *Limiter { return b.limiter() }

func (b *batch) finish(reply any, err error) {
	l := b.limiter()
	var o lane.Outcome
	switch {
	case b.redo.replaces != nil:
		err = b.queue.engine.gaveNoDefault(l, err)
	case err != nil:
		err = b.queue.engine.explain(b.queue.keys.Names(), err)
	default:
		if _, short := reply.(int64); short && l.overall.Load() == nil {
			l.overall.Store(l.Keys.Pick(0, 1, 3))
		}
		var found findings
		o, found, err = b.parse(reply)
		if found != 0 {
			b.queue.engine.found(l, found)
		}
		if err == nil && b.checksDefault {
			l.defaultChecked(b.sent)
			if found&newerDefault != 0 {
				b.queue.engine.differs(l, o.Limit, o.Interval)
			}
		}
	}
	b.queue.complete(b, o, err)
}
