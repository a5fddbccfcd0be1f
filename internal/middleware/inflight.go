package middleware

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Begin begins a request that has passed, whose grants in flight are renewed from now on. It returns what ends it, once, with
// its status: limits in flight get back what it took, and those with a Charge are charged by the status, unless the
// handler has settled. That is done when end returns, so that who sees the answer may ask at once; but if it takes longer
// than the middleware's timeout it goes on in the background. failed receives what fails. Begin returns nil if no limit
// waits for the end.
func (p *Policies[R]) Begin(ctx context.Context, r R, questions []Question, failed func(error)) (end func(status int)) {
	if !slices.ContainsFunc(questions, (Question).ends) {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	renewing, stop := context.WithCancel(ctx)
	var inFlight, charged []Question
	var timers []*time.Timer
	for _, q := range questions {
		q.failed = func(err error) { failed(fmt.Errorf("%s: policy %q: %w", p.Middleware, q.Limit.Name, err)) }
		switch {
		case !q.ends():
		case q.Limit.InFlight:
			inFlight = append(inFlight, q)
			if q.renew != nil && q.lasts > 0 {
				timers = append(timers, q.renewUntil(renewing))
			}
		default:
			charged = append(charged, q)
		}
	}
	var once sync.Once
	return func(status int) {
		once.Do(func() {
			stop()
			for _, timer := range timers {
				timer.Stop()
			}
			waiting, leave := afterwards(ctx, p.Timeout)
			defer leave()
			settle(waiting, inFlight, func(Question) int64 { return 0 })
			settle(waiting, charged, func(q Question) int64 { return max(0, p.all[q.Place].Charge(r, status)) })
		})
	}
}

// ends reports whether something is to be done when the request has ended.
func (q Question) ends() bool { return q.settle != nil && (q.Limit.InFlight || q.Limit.Charges) }

// settle settles each question by what actual returns, all at the same time. It waits for that until ctx ends.
func settle(ctx context.Context, questions []Question, actual func(Question) int64) {
	all := make([]chan struct{}, len(questions))
	for i, q := range questions {
		permits, done := actual(q), make(chan struct{})
		all[i] = done
		go func() {
			defer close(done)
			err := safely(context.WithoutCancel(ctx), func(ctx context.Context) error { return q.settle(ctx, permits) })
			if err != nil && !errors.Is(err, limit.ErrSettled) { // by the handler
				q.failed(err)
			}
		}()
	}
	for _, done := range all {
		select {
		case <-done:
		case <-ctx.Done(): // the limiter may hang
			return
		}
	}
}

// renewUntil renews a grant in flight at each third of its time, until ctx ends. The timer it returns begins that.
func (q *Question) renewUntil(ctx context.Context) *time.Timer {
	every, renew, failed := q.lasts/3, q.renew, q.failed
	return time.AfterFunc(every, func() {
		for {
			err := safely(ctx, renew)
			switch {
			case ctx.Err() != nil:
				return
			case errors.Is(err, limit.ErrSettled):
				failed(fmt.Errorf("the request is in flight without its permits, which came back before it was renewed: %w", err))
				return
			case Sleep(ctx, every) != nil:
				return
			}
		}
	})
}
