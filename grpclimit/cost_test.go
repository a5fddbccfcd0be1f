package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A cost that can't be found out ends the call with the status of the error, if it has one.
func TestWithCost_StatusOfTheError(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]codes.Code{
		errors.New("no such model"):                    codes.InvalidArgument,
		status.Error(codes.NotFound, "no such model"):  codes.NotFound,
		fmt.Errorf("%w: cost", limit.ErrInvalidConfig): codes.Internal,
	} {
		for name, made := range interceptors {
			limiter := middlewaretest.Grants()
			call := made(grpclimit.New(limiter, grpclimit.WithErrorHandler(func(context.Context, grpclimit.Call, error) {}),
				grpclimit.WithCost(func(context.Context, grpclimit.Call) (int64, error) { return 1, err })))
			assert.Equal(t, want, status.Code(call(t.Context(), func() error { return nil })), name)
			assert.Empty(t, limiter.Asked())
		}
	}
}

// A client that waits asks a limiter that names no time a few times a second.
func TestWithWait_RefusalWithoutATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		limiter := &middlewaretest.Fake{Answer: func(context.Context, int64) (limit.Decision, error) {
			return limit.Decision{Granted: time.Since(start) >= time.Second, Limit: 1}, nil
		}}
		conn, _ := serve(t, nil, unaryClient(limiter, grpclimit.WithWait()))
		require.NoError(t, check(t.Context(), conn))
		assert.Equal(t, time.Second, time.Since(start))
		assert.Len(t, limiter.Asked(), 11)
	})
}
