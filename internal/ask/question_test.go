package ask_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/ask"
	"github.com/rratelimiter/rratelimiter/limit"
)

// says is a limiter that gives one answer.
type says struct {
	decision limit.Decision
	err      error
}

func (s says) Take(context.Context, string, int64) (limit.Decision, error) { return s.decision, s.err }

// options returns those that opt makes.
func options(t *testing.T, opts ...func(*ask.Options) error) *ask.Options {
	t.Helper()
	o := &ask.Options{Timeout: time.Second}
	for _, opt := range opts {
		require.NoError(t, opt(o))
	}
	return o
}

func failing(f limit.Failure) func(*ask.Options) error {
	return func(o *ask.Options) error { return o.SetFailure(f) }
}

func fallback(l limit.Limiter) func(*ask.Options) error {
	return func(o *ask.Options) error { return o.SetFallback(l) }
}

func observed(to limit.Observer) func(*ask.Options) error {
	return func(o *ask.Options) error { return o.SetObserver(to) }
}

// decide asks one permit of a key, as middleware does.
func decide(ctx context.Context, o *ask.Options, l *ask.Limit, key string, n int64) ask.Question {
	q := l.Question(key)
	for q.Next != nil {
		bounded, cancel := ask.Bound(ctx, o.Timeout)
		if v := q.Await(ctx, bounded, q.Begin(bounded, n, o.Timeout)); v != nil {
			panic(v)
		}
		cancel()
	}
	q.Report(ctx, "test", n)
	return q
}

func TestQuestion(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	granted := limit.Decision{Granted: true, Limit: 5, Remaining: 4}
	refused := limit.Decision{Limit: 5}
	open, closed := failing(limit.FailOpen()), failing(limit.FailClosed())
	for name, c := range map[string]struct {
		limiter  says
		option   func(*ask.Options) error
		state    ask.State
		decision limit.Decision
		failures []error
	}{
		"granted":           {says{granted, nil}, closed, ask.Granted, granted, nil},
		"refused":           {says{refused, nil}, open, ask.Refused, refused, nil},
		"lets all pass":     {says{limit.Decision{Granted: true}, nil}, closed, ask.Open, limit.Decision{}, nil},
		"too costly":        {says{refused, limit.ErrPermitsExceedRate}, open, ask.TooCostly, limit.Decision{Limit: 5}, nil},
		"too many":          {says{limit.Decision{}, limit.ErrInvalidPermits}, open, ask.TooCostly, limit.Decision{}, nil},
		"failed":            {says{refused, down}, closed, ask.Closed, limit.Decision{}, []error{down}},
		"failed open":       {says{refused, down}, open, ask.Open, limit.Decision{}, []error{down}},
		"unavailable":       {says{refused, limit.ErrUnavailable}, open, ask.Open, limit.Decision{}, []error{limit.ErrUnavailable}},
		"perhaps taken":     {says{refused, errors.Join(limit.ErrUnknownOutcome, limit.ErrUnavailable)}, open, ask.Open, limit.Decision{}, []error{limit.ErrUnavailable}},
		"too slow":          {says{refused, context.DeadlineExceeded}, open, ask.Open, limit.Decision{}, []error{context.DeadlineExceeded}},
		"falls back":        {says{refused, down}, fallback(says{granted, nil}), ask.Granted, granted, []error{down}},
		"fallback refuses":  {says{granted, down}, fallback(says{refused, nil}), ask.Refused, refused, []error{down}},
		"fallback fails":    {says{granted, down}, fallback(says{granted, errors.ErrUnsupported}), ask.Closed, limit.Decision{}, []error{down, errors.ErrUnsupported}},
		"misconfigured":     {says{granted, limit.ErrInvalidConfig}, open, ask.Closed, limit.Decision{}, []error{limit.ErrInvalidConfig}},
		"corrupt":           {says{granted, limit.ErrCorrupt}, open, ask.Closed, limit.Decision{}, []error{limit.ErrCorrupt}},
		"unsupported":       {says{granted, limit.ErrUnsupported}, open, ask.Closed, limit.Decision{}, []error{limit.ErrUnsupported}},
		"no rate":           {says{granted, limit.ErrNotInitialized}, open, ask.Closed, limit.Decision{}, []error{limit.ErrNotInitialized}},
		"closed client":     {says{granted, limit.ErrClosed}, open, ask.Closed, limit.Decision{}, []error{limit.ErrClosed}},
		"bad, no fallback":  {says{granted, limit.ErrInvalidConfig}, fallback(says{granted, nil}), ask.Closed, limit.Decision{}, []error{limit.ErrInvalidConfig}},
		"fallback is bad":   {says{granted, down}, fallback(says{granted, limit.ErrInvalidConfig}), ask.Closed, limit.Decision{}, []error{down, limit.ErrInvalidConfig}},
		"fallback too many": {says{granted, down}, fallback(says{refused, limit.ErrPermitsExceedRate}), ask.TooCostly, limit.Decision{Limit: 5}, []error{down}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(t, c.option)
			l, err := o.Limit("test", c.limiter, nil, nil)
			require.NoError(t, err)
			q := decide(t.Context(), o, l, "k", 1)
			assert.Equal(t, c.state, q.State)
			assert.Equal(t, c.decision, q.Decision)
			if len(c.failures) == 0 {
				require.NoError(t, q.Failure)
			}
			for _, want := range c.failures {
				require.ErrorIs(t, q.Failure, want)
			}
		})
	}
}

func TestFallbackIsNotAskedForARequestThatHasEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := options(t, fallback(says{}))
	l, err := o.Limit("test", says{err: context.Canceled}, nil, nil)
	require.NoError(t, err)
	q := decide(ctx, o, l, "k", 1)
	assert.Nil(t, q.Next)
	assert.Equal(t, ask.Closed, q.State)
}
