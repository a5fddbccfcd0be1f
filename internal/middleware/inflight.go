package middleware

import (
	"context"
	"errors"
	"fmt"
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
	e := ending{failed: func(q *Question, err error) {
		_ = safely(ctx, func(context.Context) error { // a panic has no one left to report to
			failed(fmt.Errorf("%s: policy %q: %w", p.Middleware, q.Limit.Name, err))
			return nil
		})
	}}
	for i := range questions {
		switch q := &questions[i]; {
		case q.settle == nil:
		case q.Limit.InFlight:
			e.inFlight = append(e.inFlight, q)
		case q.Limit.Charges:
			e.charged = append(e.charged, q)
		}
	}
	if len(e.inFlight)+len(e.charged) == 0 {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	stop := e.renew(ctx)
	var once sync.Once
	return func(status int) {
		once.Do(func() {
			stop()
			waiting, leave := afterwards(ctx, p.Timeout)
			defer leave()
			e.settle(waiting, e.inFlight, func(*Question) int64 { return 0 })
			e.settle(waiting, e.charged, func(q *Question) int64 { return max(0, p.all[q.Place].Charge(r, status)) })
		})
	}
}

// ending is what a request has been granted that is settled when it ends.
type ending struct {
	inFlight, charged []*Question

	failed func(*Question, error)
}

// settle settles each question by what actual returns, all at the same time. It waits for that until ctx ends. What a question
// took stays taken if actual panics.
func (e *ending) settle(ctx context.Context, questions []*Question, actual func(*Question) int64) {
	all := make([]chan struct{}, 0, len(questions))
	for _, q := range questions {
		var permits int64
		err := safely(ctx, func(context.Context) error {
			permits = actual(q)
			return nil
		})
		if err != nil {
			e.failed(q, err)
			continue
		}
		done := make(chan struct{})
		all = append(all, done)
		settle := func() error {
			return safely(context.WithoutCancel(ctx), func(ctx context.Context) error { return q.settle(ctx, permits) })
		}
		go func() {
			err := settle()
			if err != nil && !errors.Is(err, limit.ErrSettled) { // by the handler
				e.failed(q, err)
			}
			close(done)
			q.again(settle, err, time.Second, q.lasts)
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

// again repeats what has failed, after pauses, while Redis does not answer and until what was granted has come back by itself:
// otherwise a short outage would leave no places for as long as that.
func (q *Question) again(settle func() error, err error, pause, left time.Duration) {
	if q.Limit.keyed != nil && errors.Is(err, limit.ErrUnavailable) && pause < left {
		time.AfterFunc(pause, func() { q.again(settle, settle(), min(2*pause, time.Minute), left-pause) })
	}
}

// renew renews what is in flight, each at a third of its time, until stop is called.
func (e *ending) renew(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var timers []*time.Timer
	for _, q := range e.inFlight {
		every := q.lasts / 3
		if q.renew == nil || every <= 0 {
			continue
		}
		timers = append(timers, time.AfterFunc(every, func() {
			for {
				err, pause := safely(ctx, q.renew), every
				switch {
				case ctx.Err() != nil:
					return
				case errors.Is(err, limit.ErrSettled):
					e.failed(q, fmt.Errorf("what the request took came back before it was renewed, so others may have it: %w", err))
					return
				case errors.Is(err, limit.ErrUnavailable): // there is still time
					pause = min(every, time.Second)
				}
				if Sleep(ctx, pause) != nil {
					return
				}
			}
		}))
	}
	return func() {
		cancel()
		for _, timer := range timers {
			timer.Stop()
		}
	}
}
