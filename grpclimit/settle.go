package grpclimit

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/rratelimiter/rratelimiter/internal/ask"
)

// Settle sets what a call costs to actual permits, for the handler to call once that is known. The
// context is the handler's, or that of its stream. The interceptor must have [WithSettle]. If there
// are several in the chain, all are settled. In a stream with [WithPerMessage] Settle settles the
// message that Recv returned last, and before the first the opening.
//
// Of fewer permits than the estimate the rest is free at once. Of more the difference is charged,
// whether it is free or not, and later calls are refused until enough has come back. A call that
// is not settled costs the estimate, also if its handler panics. Trailers tell of the estimate.
//
// If nothing was charged, Settle does nothing: the call was skipped or cost 0, or it passed because
// of WithFailure, WithFallback or WithShadow. A fallback that is a [limit.Reserver] charges and is
// settled.
//
// A call is settled once; after that Settle returns limit.ErrSettled. It returns
// limit.ErrUnsupported if the limiter can't reserve, which keeps the estimate. The error is
// limit.ErrInvalidConfig if no interceptor with WithSettle is around. Other errors are those of
// Reservation.Settle: after limit.ErrUnavailable call it again, with the same number. If ctx
// ends, Settle returns and finishes in the background.
func Settle(ctx context.Context, actual int64) error {
	if err := ask.Settle(ctx, actual); err != nil {
		return fmt.Errorf("grpclimit: Settle: %w", err)
	}
	return nil
}

// settleable returns the context that a handler gets, and what it may settle: nil without
// WithSettle.
func (g *gate) settleable(ctx context.Context) (context.Context, *ask.Settlement) {
	if !g.Settled {
		return ctx, nil
	}
	return ask.WithSettlement(ctx)
}

// settledStream is a stream whose handler may settle.
type settledStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s settledStream) Context() context.Context { return s.ctx }
