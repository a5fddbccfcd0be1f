package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Want is the state of a handle with WithRate.
type Want struct {
	set  atomic.Bool // Redis had the rate when the handle looked
	mu   sync.Mutex
	look *look // under way, or the one that succeeded
}

// look is one try to set the limiter's rate, for all who wait for it.
type look struct {
	done chan struct{}
	err  error
}

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
		timer := time.NewTimer(timeout + e.grace)
		defer timer.Stop()
		late = timer.C
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

// begin starts a look, unless one is under way or has succeeded.
func (w *Want) begin(do func() error) *look {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.look == nil {
		begun := &look{done: make(chan struct{})}
		w.look = begun
		go func() {
			defer close(begun.done)
			if begun.err = do(); begun.err == nil {
				w.set.Store(true)
				return
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.look = nil
		}()
	}
	return w.look
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
