package middleware

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
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
	o.asking(questions)
	o.ask(ctx, questions)
	return o.conclude(ctx, questions, false)
}

// asking begins the time that the limits have to answer.
func (o *Options) asking(questions []Question) {
	now := time.Now()
	for i := range questions {
		questions[i].began = now
	}
}

// conclude sums up the answers. If the request does not pass, grants are given back, unless it keeps them to ask again.
func (o *Options) conclude(ctx context.Context, questions []Question, keeps bool) Verdict {
	v := o.Judge(questions)
	v.Gone = (v.Failure != nil || v.News != nil) && errors.Is(ctx.Err(), context.Canceled)
	if v.Refused || v.Closed || v.Gone {
		keep(questions, keeps && !v.Closed && !v.Gone)
		v.Kept = o.giveBack(ctx, questions)
		for i := range questions {
			if !questions[i].kept {
				questions[i].settle = nil
			}
		}
	}
	return v
}

// Judge sums up the answers.
func (o *Options) Judge(questions []Question) (v Verdict) {
	var failures, news []error
	for i := range questions {
		q := &questions[i]
		live := !q.Limit.Shadow
		v.Refused = v.Refused || live && q.Refused()
		v.Closed = v.Closed || live && q.State == Closed
		if q.Failure != nil {
			failure := fmt.Errorf("%s: policy %q: %w", o.Middleware, q.Limit.Name, q.Failure)
			if live {
				failures = append(failures, failure)
			}
			if q.news {
				news = append(news, failure)
			}
		}
	}
	v.Failure, v.News = errors.Join(failures...), errors.Join(news...)
	return v
}

func (o *Options) ask(ctx context.Context, questions []Question) {
	if len(questions) == 1 {
		questions[0].Ask(ctx)
		return
	}
	defer o.giveBackPanicking(ctx, questions)
	all := rounds(ctx, questions)
	decide.AtOnce(len(all), func(i int) { all[i].ask(ctx) })
}

// giveBackPanicking undoes the grants if a limiter panics. The panic goes on, in the goroutine that serves the request.
func (o *Options) giveBackPanicking(ctx context.Context, questions []Question) {
	if v := recover(); v != nil {
		_ = o.GiveBack(ctx, questions) // what fails only leaves the limits tighter
		panic(v)
	}
}

// GiveBack undoes the grants among the questions, all at the same time, and brings their figures up to date.
func (o *Options) GiveBack(ctx context.Context, questions []Question) error {
	for i := range questions {
		questions[i].kept = false
	}
	return o.giveBack(ctx, questions)
}

// giveBack is GiveBack without the grants that are kept.
func (o *Options) giveBack(ctx context.Context, questions []Question) error {
	if !slices.ContainsFunc(questions, func(q Question) bool { return q.GiveBack != nil && !q.kept }) {
		return nil
	}
	giving, cancel := afterwards(ctx, o.Timeout)
	defer cancel()
	failures := make([]error, len(questions))
	decide.AtOnce(len(questions), func(i int) {
		q := &questions[i]
		back := q.GiveBack
		if back == nil || q.kept {
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
