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
