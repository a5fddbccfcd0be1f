package ask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/outage"
)

// Verdict sums up the answers to the questions about one request.
type Verdict struct {
	Refused bool  // at least one refused
	Closed  bool  // at least one failed, and its failure closes
	Failure error // of those that failed, whatever answered in their place
	News    error // what of that the error handler learns
	Kept    error // why grants could not be given back
	Gone    bool  // the client left before there was a decision: no limiter is to blame
}

// AskAll asks all questions about a request at the same time, so the longest of their waits counts. Limiters
// that Redis can ask together are one call. What some granted is given back if the request does not pass.
func (o *Options) AskAll(ctx context.Context, questions []Question) Verdict {
	o.ask(ctx, questions)
	v := o.Judge(questions)
	v.Gone = v.Failure != nil && errors.Is(ctx.Err(), context.Canceled)
	if v.Refused || v.Closed || v.Gone {
		v.Kept = o.GiveBack(ctx, questions)
		for i := range questions {
			questions[i].settle = nil
		}
	}
	return v
}

// Judge sums up the answers.
func (o *Options) Judge(questions []Question) (v Verdict) {
	var failures, news []error
	for i := range questions {
		q := &questions[i]
		v.Refused = v.Refused || q.Refused()
		v.Closed = v.Closed || q.State == Closed
		if q.Failure != nil {
			failure := fmt.Errorf("%s: policy %q: %w", o.Middleware, q.Limit.Name, q.Failure)
			failures = append(failures, failure)
			if !q.known {
				news = append(news, failure)
			}
		}
	}
	v.Failure, v.News = errors.Join(failures...), errors.Join(news...)
	return v
}

func (o *Options) ask(ctx context.Context, questions []Question) {
	for i, now := 0, time.Now(); i < len(questions); i++ {
		questions[i].began = now
	}
	if len(questions) == 1 {
		questions[0].Ask(ctx)
		return
	}
	defer func() {
		if v := recover(); v != nil {
			// The panic goes on, in the goroutine that serves the request. What fails here only leaves the
			// limits tighter.
			_ = o.GiveBack(ctx, questions)
			panic(v)
		}
	}()
	all := rounds(ctx, questions)
	outage.AtOnce(len(all), func(i int) { all[i].ask(ctx) })
}

// GiveBack undoes the grants among the questions, all at the same time, and brings their figures up to date.
func (o *Options) GiveBack(ctx context.Context, questions []Question) error {
	if !slices.ContainsFunc(questions, func(q Question) bool { return q.GiveBack != nil }) {
		return nil
	}
	giving, cancel := afterwards(ctx, o.Timeout)
	defer cancel()
	failures := make([]error, len(questions))
	outage.AtOnce(len(questions), func(i int) {
		q := &questions[i]
		back := q.GiveBack
		if back == nil {
			return
		}
		q.GiveBack = nil // once
		given := make(chan error, 1)
		go func() { given <- safely(giving, back) }()
		var err error
		select {
		case err = <-given:
		case <-giving.Done(): // the limiter may ignore that
			err = giving.Err()
		}
		if err != nil {
			failures[i] = fmt.Errorf("%s: policy %q: giving back: %w", o.Middleware, q.Limit.Name, err)
			return
		}
		q.returned()
	})
	return errors.Join(failures...)
}

// returned brings the figures up to date after a grant was given back.
func (q *Question) returned() {
	q.Returned = true
	d := &q.Decision
	d.Remaining = min(d.Remaining+q.Permits, d.Limit)
	if d.Remaining == d.Limit {
		d.ResetAfter = 0
	}
}
