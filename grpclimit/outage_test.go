package grpclimit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A limiter that hangs costs three calls the timeout.
func TestHungLimiter(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		option grpclimit.Option
		passes bool
	}{
		"closed":   {grpclimit.WithFailure(limit.FailClosed()), false},
		"open":     {grpclimit.WithFailure(limit.FailOpen()), true},
		"fallback": {grpclimit.WithFallback(&budget{limit: 1000}), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				told := &recorder{}
				interceptor := grpclimit.UnaryServerInterceptor(slow, byMethod, quiet, test.option,
					grpclimit.WithObserver(told), grpclimit.WithName("calls"))
				for i := range 50 {
					start := time.Now()
					err := call(t.Context(), interceptor)
					if test.passes {
						assert.Equal(t, errHandled, err)
					} else {
						assert.Equal(t, codes.Unavailable, status.Code(err))
					}
					if i >= 3 {
						assert.LessOrEqual(t, time.Since(start), 5*time.Millisecond)
					}
					time.Sleep(time.Millisecond)
				}
				synctest.Wait()
				require.Len(t, told.Events(), 1)
				assert.Equal(t, "calls", told.Events()[0].Limiter)
				assert.Len(t, told.Decisions(), 50)
				time.Sleep(time.Minute)
			})
		})
	}
}

// Callers choose their deadlines: with very short ones they don't open the way for
// others.
func TestShortDeadlinesOfCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := &budget{limit: 1}
		late := limiterFunc(func(ctx context.Context, key string, n int64) (limit.Decision, error) {
			time.Sleep(2 * time.Millisecond)
			if ctx.Err() != nil {
				return limit.Decision{}, ctx.Err()
			}
			return limiter.Take(ctx, key, n)
		})
		interceptor := grpclimit.UnaryServerInterceptor(late, byMethod, quiet, grpclimit.WithFailure(limit.FailOpen()))
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			assert.Equal(t, codes.DeadlineExceeded, status.Code(call(ctx, interceptor)))
			cancel()
		}
		assert.Equal(t, errHandled, call(t.Context(), interceptor))
		for range 10 {
			assert.Equal(t, codes.ResourceExhausted, status.Code(call(t.Context(), interceptor)))
		}
	})
}

// The limit that was told before is shared in.
func TestFailLocal(t *testing.T) {
	t.Parallel()
	var down error
	limiter := windowed{limiterFunc(func(context.Context, string, int64) (limit.Decision, error) {
		return limit.Decision{Granted: true, Limit: 8, Remaining: 7}, down
	})}
	interceptor := grpclimit.UnaryServerInterceptor(limiter, byMethod, quiet, grpclimit.WithFailure(limit.FailLocal(0.25)))
	assert.Equal(t, errHandled, call(t.Context(), interceptor))
	down = limit.ErrUnavailable
	assert.Equal(t, errHandled, call(t.Context(), interceptor))
	assert.Equal(t, errHandled, call(t.Context(), interceptor))
	assert.Equal(t, codes.ResourceExhausted, status.Code(call(t.Context(), interceptor)))
}

type windowed struct{ limiterFunc }

func (windowed) Window() time.Duration { return time.Hour }

// Each call goes on at once, and the observer hears what would have become of it.
func TestShadow(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	for name, test := range map[string]struct {
		limiter limit.Limiter
		opts    []grpclimit.Option
		outcome []limit.Outcome
		heard   int
	}{
		"used up":    {&budget{limit: 1, retryAfter: time.Minute}, nil, []limit.Outcome{limit.Granted, limit.Refused}, 0},
		"down":       {failing(down), nil, []limit.Outcome{limit.Failed, limit.Failed}, 2},
		"open":       {failing(down), []grpclimit.Option{grpclimit.WithFailure(limit.FailOpen())}, []limit.Outcome{limit.Granted, limit.Granted}, 2},
		"too costly": {failing(limit.ErrPermitsExceedRate), nil, []limit.Outcome{limit.Failed, limit.Failed}, 0},
		"no key": {&budget{limit: 1}, []grpclimit.Option{grpclimit.WithKey(func(context.Context, grpclimit.Call) (string, error) {
			return "", down
		})}, nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var heard failures
				told := &recorder{}
				interceptor := grpclimit.UnaryServerInterceptor(test.limiter,
					append([]grpclimit.Option{byMethod, heard.option(), grpclimit.WithShadow(), grpclimit.WithObserver(told)}, test.opts...)...)
				start := time.Now()
				for range 2 {
					assert.Equal(t, errHandled, call(t.Context(), interceptor))
				}
				assert.Zero(t, time.Since(start))
				assert.Len(t, heard, test.heard)
				var outcome []limit.Outcome
				for _, d := range told.Decisions() {
					outcome = append(outcome, d.Outcome)
					assert.Equal(t, "grpclimit", d.Call)
					assert.True(t, d.Shadow)
				}
				assert.Equal(t, test.outcome, outcome)
			})
		})
	}
}

// A client that would wait does not, and one that waits is one decision.
func TestShadowOfAClientThatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		arrived := 0
		limiter := &budget{limit: 1, retryAfter: time.Minute}
		told := &recorder{}
		conn, _ := serve(t, counting(&arrived), unaryClient(limiter, grpclimit.WithWait(), grpclimit.WithShadow(), grpclimit.WithObserver(told)))
		start := time.Now()
		for range 3 {
			require.NoError(t, check(t.Context(), conn))
		}
		assert.Zero(t, time.Since(start))
		assert.Equal(t, 3, arrived)
		assert.Len(t, told.Decisions(), 3)
	})
	synctest.Test(t, func(t *testing.T) {
		told := &recorder{}
		start := time.Now()
		limiter := limiterFunc(func(context.Context, string, int64) (limit.Decision, error) {
			return limit.Decision{Granted: time.Since(start) > 3*time.Second, Limit: 1, RetryAfter: time.Second}, nil
		})
		conn, _ := serve(t, nil, unaryClient(limiter, grpclimit.WithWait(), grpclimit.WithObserver(told)))
		require.NoError(t, check(t.Context(), conn))
		require.Len(t, told.Decisions(), 1)
		assert.Equal(t, limit.Granted, told.Decisions()[0].Outcome)
		assert.GreaterOrEqual(t, told.Decisions()[0].Waited, 3*time.Second)
	})
}
