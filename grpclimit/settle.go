package grpclimit

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/rratelimiter/rratelimiter/internal/middleware"
)

// Settle sets what a call costs to actual permits. The handler calls it once that is known, with its own context or that of
// its stream. In all interceptors of the chain it settles the policies that have Policy.Settle, or if there are none, those
// that have Policy.Charge; others keep what they charged, or are charged by their Charge. In a stream with [WithPerMessage],
// Settle settles the message that Recv returned last, or the opening before the first message.
//
// If actual is less than the estimate, the rest is free at once. If it is more, the difference is
// charged even if it isn't free, and later calls are refused until enough has come back. If the
// call was charged nothing, Settle does nothing.
//
// A second call returns limit.ErrSettled. If the limiter can't reserve, the estimate stays and Settle returns
// limit.ErrUnsupported. Without an interceptor with Settle or Charge in a Policy it returns limit.ErrInvalidConfig. Other errors
// are those of Reservation.Settle: after limit.ErrUnavailable call it again with the same number. If ctx ends, Settle returns
// and finishes in the background. docs/http.md has more about calls that are not settled or not charged.
func Settle(ctx context.Context, actual int64) error {
	if err := middleware.Settle(ctx, actual); err != nil {
		return fmt.Errorf("grpclimit: Settle: %w", err)
	}
	return nil
}

// handled returns the context that a handler gets, and what middleware notes there.
func (g *gate) handled(ctx context.Context) (context.Context, *middleware.Record) {
	return middleware.WithRecord(ctx, g.Settles(), g.Charges())
}

// handledStream is a stream with that context.
type handledStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s handledStream) Context() context.Context { return s.ctx }
