package ask_test

import (
	"context"
	"errors"
	"testing"

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

func TestQuestion(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	granted := limit.Decision{Granted: true, Limit: 5, Remaining: 4}
	refused := limit.Decision{Limit: 5}
	open := ask.Failure{Open: true}
	for name, c := range map[string]struct {
		limiter  says
		failure  ask.Failure
		state    ask.State
		decision limit.Decision
		failures []error
	}{
		"granted":    {says{granted, nil}, ask.Failure{}, ask.Granted, granted, nil},
		"refused":    {says{refused, nil}, open, ask.Refused, refused, nil},
		"too costly": {says{refused, limit.ErrPermitsExceedRate}, open, ask.TooCostly, limit.Decision{Limit: 5}, nil},
		"too many":   {says{limit.Decision{}, limit.ErrInvalidPermits}, open, ask.TooCostly, limit.Decision{}, nil},

		"failed":            {says{refused, down}, ask.Failure{}, ask.Closed, limit.Decision{}, []error{down}},
		"failed open":       {says{refused, down}, open, ask.Open, limit.Decision{}, []error{down}},
		"falls back":        {says{refused, down}, ask.FallBack(says{granted, nil}), ask.Granted, granted, []error{down}},
		"fallback refuses":  {says{granted, down}, ask.FallBack(says{refused, nil}), ask.Refused, refused, []error{down}},
		"fallback fails":    {says{granted, down}, ask.FallBack(says{granted, errors.ErrUnsupported}), ask.Closed, limit.Decision{}, []error{down, errors.ErrUnsupported}},
		"misconfigured":     {says{granted, limit.ErrInvalidConfig}, open, ask.Closed, limit.Decision{}, []error{limit.ErrInvalidConfig}},
		"bad, no fallback":  {says{granted, limit.ErrInvalidConfig}, ask.FallBack(says{granted, nil}), ask.Closed, limit.Decision{}, []error{limit.ErrInvalidConfig}},
		"fallback is bad":   {says{granted, down}, ask.FallBack(says{granted, limit.ErrInvalidConfig}), ask.Closed, limit.Decision{}, []error{down, limit.ErrInvalidConfig}},
		"fallback too many": {says{granted, down}, ask.FallBack(says{refused, limit.ErrPermitsExceedRate}), ask.TooCostly, limit.Decision{Limit: 5}, []error{down}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := ask.Question{Key: "k", Next: c.limiter}
			for q.Next != nil {
				assert.Equal(t, ask.Unsettled, q.State)
				q.Settle(t.Context(), q.Begin(t.Context(), 1, 0).Await(t.Context()), c.failure)
			}
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
	q := ask.Question{Key: "k", Next: says{}}
	q.Settle(ctx, ask.Outcome{Err: ctx.Err()}, ask.FallBack(says{}))
	assert.Nil(t, q.Next)
	assert.Equal(t, ask.Closed, q.State)
}
