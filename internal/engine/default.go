package engine

import (
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// comparePause is how long a handle waits before it compares its default with the limiter's again:
// another program may have set up the limiter since.
const comparePause = time.Minute

// compareDue reports whether it is time to compare the handle's default with the one that set up the
// limiter.
func (l *Limiter) compareDue(now time.Time) bool {
	return l.Fallback != "" && l.Want == nil && now.UnixNano() >= l.compared.Load()
}

// hasCompared records that a call sent then was answered, which compared them if that was due.
func (l *Limiter) hasCompared(sent time.Time) {
	if l.compareDue(sent) {
		l.compared.Store(sent.Add(comparePause).UnixNano())
	}
}

// olderDefault reads the answer of a script that found the default of a program that began
// before. The words in front of it are the answer's name and, for several limiters, the limiter's
// number.
func olderDefault(reply any) (older limit.Rate, number int64, ok bool) {
	words, _ := reply.([]any)
	if len(words) != 5 && len(words) != 6 || words[0] != "default" {
		return limit.Rate{}, 0, false
	}
	values, err := script.Integers(words[1:], 4)
	if err != nil {
		return limit.Rate{}, 0, false
	}
	return rateOf(values[len(values)-4:]), values[0], true
}

// giveDefault returns the call that replaces a limiter's default with the handle's and keeps permits
// in use. It has the same effect however often it runs.
func (e *Engine) giveDefault(l *Limiter) script.Call {
	return script.Call{Script: lua.SetRate, Keys: l.Keys, Args: script.Paged(append(RateWords(l.Rate), e.rules.Keep(), l.Fallback)), Repeat: true}
}

// gaveDefault records that the call was answered.
func (e *Engine) gaveDefault(l *Limiter, older limit.Rate, reply any) {
	e.changed(l)
	l.hasCompared(e.clock.Now())
	if reply == int64(1) {
		e.happened(limit.Event{Kind: limit.RateReplaced, Limiter: l.Observed, Found: older, Want: l.Rate}, once)
	}
}

// gaveNoDefault returns the error for callers whose request waited for that call, which failed.
func (e *Engine) gaveNoDefault(l *Limiter, err error) error {
	e.changed(l)
	return fmt.Errorf("giving the limiter the new rate of its default: %w", e.explain(l.Keys.Names(), err))
}

// comparedDefault records what an answer says about the limiter's default.
func (e *Engine) comparedDefault(b *batch, o outcome) {
	if !b.compares {
		return
	}
	l := b.limiter()
	l.hasCompared(b.sent)
	if o.findings&overruled != 0 {
		e.differs(l, o.Limit, o.interval)
	}
}
