package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// redraws counts how often a call was made with another identity.
type redraws int

// maxRedraws is how many identities are tried. That all of them are taken is next to impossible.
const maxRedraws = 16

// again reports whether the call must be made with another identity: the script found this one at another member, as
// those of old layouts are short. No answer says so if it is in doubt whether an attempt has run.
func (n *redraws) again(e *Engine, reply any, err error) bool {
	isTaken := isWord(reply, "taken") || !errors.Is(err, script.ErrLost) && script.Code(err) == "LATE"
	if !isTaken || *n == maxRedraws {
		return false
	}
	*n++
	e.ids.Skip()
	return true
}

// defaultCall replaces the limiter's default by the handle's, keeps permits in use, and has the same effect however
// often it runs.
func (e *Engine) defaultCall(l *Limiter) script.Call {
	args := script.Paged(append(RateWords(l.Rate), e.rules.Keep(), e.fallback(l, time.Now())))
	return script.Call{Script: lua.SetRate, Keys: l.Keys(), Args: args, Repeat: true}
}

// gaveDefault records how that call ended: the limiter's default was replaced, another program was faster, or it failed.
func (e *Engine) gaveDefault(l *Limiter, older limit.Rate, c *lane.Call) {
	reply, err := c.Outcome()
	e.changed(l.Config)
	if err == nil {
		l.defaultChecked(time.Now())
	}
	if reply == int64(1) {
		e.happened(limit.Event{Kind: limit.RateReplaced, Limiter: l.Observed, Found: older, Want: l.Rate}, once)
	}
}

// noDefault returns the error for callers whose request waited for that call, which failed.
func (e *Engine) noDefault(l *Limiter, err error) error {
	return fmt.Errorf("giving the limiter the new rate of its default: %w", e.explain(l.Keys().Names(), err))
}

// OnReply passes the result to the callers, unless the call must be made again: with a new identity if another
// client's member has the same short id; with all keys if the limiter turned out not to be of type Overall; or after
// one that replaces an older default.
func (b *batch) OnReply(c *lane.Call) (again bool) {
	reply, err := c.Outcome()
	e, l, r := b.queue.engine, b.limiter, &b.redo
	_, short := reply.(int64)
	switch older, _, isOlder := olderDefault(reply); {
	case short && !r.replaces:
	case r.replaces && err == nil:
		e.gaveDefault(l, r.older, c)
		r.replaces = false
		b.makeCall()
		return true
	case isWrongType(err): // explaining it makes calls
		go b.finish(reply, err)
		return false
	case r.replaces:
	case isOlder:
		r.replaces, r.older = true, older
		*c = lane.Call{Call: e.defaultCall(l), Owner: b, Requests: c.Requests}
		return true
	case isWord(reply, "keys") && len(b.call.Keys.Names()) < keysEach:
		l.overall.Store(nil)
		b.makeCall()
		return true
	case r.redraws.again(e, reply, err):
		b.makeCall()
		return true
	}
	b.finish(reply, err)
	return false
}

func (b *batch) finish(reply any, err error) {
	l := b.limiter
	var o lane.Outcome
	switch {
	case b.redo.replaces:
		b.queue.engine.changed(l.Config)
		err = b.queue.engine.noDefault(l, err)
	case err != nil:
		err = b.queue.engine.explain(b.queue.of.Keys().Names(), err)
	default:
		if _, short := reply.(int64); short && l.overall.Load() == nil {
			l.SupposeOverall()
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
		if err == nil && b.fallback != "" {
			l.showed(o.Limit, o.Interval, b.checksDefault)
		}
	}
	b.queue.complete(b, o, err)
}
