package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
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
