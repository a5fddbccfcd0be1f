package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Rate reads a limiter's rate.
func (e *Engine) Rate(ctx context.Context, l *Limiter) (limit.Rate, error) {
	reply, err := e.Read(ctx, l, script.Call{Script: lua.Config, Args: script.Constant{}})
	if err != nil {
		return limit.Rate{}, err
	}
	values, err := script.Integers(reply, 4)
	if err != nil {
		return limit.Rate{}, err
	}
	return rateOf(values), nil
}

// rateOf reads a rate in the form scripts use.
func rateOf(values []int64) limit.Rate {
	return limit.Rate{
		Permits: values[0], Interval: script.Millis(values[1]), PerClient: values[2] == 1, KeepAlive: script.Millis(values[3]),
	}
}

// RateWords are a rate in the form scripts use.
func RateWords(r limit.Rate) []any {
	kind := 0
	if r.PerClient {
		kind = 1
	}
	return []any{r.Permits, r.Interval.Milliseconds(), kind, r.KeepAlive.Milliseconds()}
}

// haveRate makes sure, once, that the limiter has the rate of its handle. It returns the rest of the
// caller's timeout, if it has one.
func (e *Engine) haveRate(ctx context.Context, l *Limiter, timeout time.Duration) (left time.Duration, err error) {
	if l.Want == nil || l.Want.set.Load() {
		return timeout, nil
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	var late <-chan time.Time
	start := time.Now()
	if timeout > 0 {
		late = time.After(timeout + e.grace)
	}
	looked := l.Want.begin(func() error { return e.giveRate(context.WithoutCancel(ctx), l) })
	select {
	case <-looked.done:
		return timeout - time.Since(start), looked.err
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-late:
		return 0, lane.NoAnswer(time.Since(start), false)
	}
}

// giveRate sets the limiter's rate if it is another one. The script has the same effect however often
// it runs, so it is repeated.
func (e *Engine) giveRate(ctx context.Context, l *Limiter) error {
	set := func(only any) (reply any, err error) {
		return e.Change(ctx, l, script.Call{Script: lua.SetRate, Args: script.Paged(append(RateWords(l.Rate), 1, only)), Repeat: true})
	}
	found, err := e.Rate(ctx, l)
	if errors.Is(err, limit.ErrNotInitialized) {
		var reply any
		if reply, err = set("new"); err == nil && reply != int64(1) {
			found, err = e.Rate(ctx, l) // an earlier try has set it, or another program
		} else {
			found = l.Rate
		}
	}
	if err == nil && found != l.Rate {
		if _, err = set(0); err == nil {
			e.observer.Happened(limit.Event{Kind: limit.RateReplaced, Limiter: l.Observed, Found: found, Want: l.Rate})
		}
	}
	if err != nil {
		return fmt.Errorf("giving the limiter the rate of WithRate: %w", err)
	}
	return nil
}

// tellRate reports the rate in an answer if the handle wants another one, once for each rate found.
func (e *Engine) tellRate(l *Limiter, permits int64, interval time.Duration) {
	if l != nil && l.Want != nil && (permits != l.Rate.Permits || interval != l.Rate.Interval) {
		e.differs(l, permits, interval)
	}
}

// differs reports that the limiter has another rate than its handle.
func (e *Engine) differs(l *Limiter, permits int64, interval time.Duration) {
	e.happened(limit.Event{
		Kind: limit.RateDiffers, Limiter: l.Observed,
		Found: limit.Rate{Permits: permits, Interval: interval}, Want: limit.Rate{Permits: l.Rate.Permits, Interval: l.Rate.Interval},
	}, once)
}

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

// gaveDefault records that the limiter's default was replaced, or another program was faster.
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
