package httplimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rratelimiter/rratelimiter/internal/ask"
)

// result is one policy's answer to a request.
type result struct {
	ask.Question

	policy   *policy
	returned bool // the grant was given back
}

func (r *result) refused() bool { return r.State == ask.Refused || r.State == ask.TooCostly }

// ask asks all policies that have no answer at hand at the same time, so the longest of their waits
// counts.
func (m *middleware) ask(ctx context.Context, results []result) {
	defer func() {
		if v := recover(); v != nil {
			// The panic goes on, in the goroutine where net/http expects it. What fails here only
			// leaves the limits tighter.
			_ = m.giveBack(ctx, results)
			panic(v)
		}
	}()
	if len(results) == 1 {
		results[0].Ask(ctx)
		return
	}
	var asking sync.WaitGroup
	panicked := make([]any, len(results))
	for i := range results {
		if !results[i].FromMemory(ctx) {
			asking.Go(func() {
				defer func() { panicked[i] = recover() }()
				results[i].Ask(ctx)
			})
		}
	}
	asking.Wait()
	for _, v := range panicked {
		if v != nil {
			panic(v)
		}
	}
}

// giveBack undoes the grants among results, all at the same time, and brings
// their figures up to date.
func (m *middleware) giveBack(ctx context.Context, results []result) error {
	if !slices.ContainsFunc(results, func(r result) bool { return r.GiveBack != nil }) {
		return nil
	}
	giving, cancel := ask.Afterwards(ctx, m.Timeout)
	defer cancel()
	given := make([]chan error, len(results))
	for i := range results {
		if results[i].GiveBack == nil {
			continue
		}
		given[i] = make(chan error, 1)
		back := results[i].GiveBack
		results[i].GiveBack = nil // once
		go func() { given[i] <- ask.Safely(giving, back) }()
	}
	var failures []error
	for i := range results {
		if given[i] == nil {
			continue
		}
		var err error
		select {
		case err = <-given[i]:
		case <-giving.Done():
			err = giving.Err()
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("httplimit: policy %q: giving back: %w", results[i].policy.name, err))
			continue
		}
		results[i].returned = true
		d := &results[i].Decision
		d.Remaining = min(d.Remaining+results[i].Permits, d.Limit)
		if d.Remaining == d.Limit {
			d.ResetAfter = 0
		}
	}
	return errors.Join(failures...)
}
