package httplimit

import (
	"context"
	"fmt"

	"github.com/rratelimiter/rratelimiter/internal/ask"
)

// Settle sets what a request costs to actual permits, for the handler to call once that is known.
// The context is that of the request that the handler got, or one made of it. The middleware must
// have [WithSettle]. Several around each other are all settled, with all of their policies:
//
//	err := httplimit.Settle(r.Context(), answer.Usage.TotalTokens)
//
// Of fewer permits than the estimate the rest is free at once. Of more the difference is charged,
// whether it is free or not, and later requests are refused until enough has come back. A request
// that is not settled costs the estimate, also if its handler panics. The answer's headers tell of
// the estimate.
//
// If nothing was charged, Settle does nothing: the request was skipped or cost 0, or it passed
// because of WithFailure, WithFallback or WithShadow. A fallback that is a [limit.Reserver] charges
// and is settled.
//
// A request is settled once; after that Settle returns limit.ErrSettled. It returns
// limit.ErrUnsupported for policies whose limiter can't reserve. These keep the estimate. The error is
// limit.ErrInvalidConfig if no middleware with WithSettle is around. Other errors are those of
// Reservation.Settle: after limit.ErrUnavailable call it again, with the same number. If ctx
// ends, Settle returns and finishes in the background.
func Settle(ctx context.Context, actual int64) error {
	if err := ask.Settle(ctx, actual); err != nil {
		return fmt.Errorf("httplimit: Settle: %w", err)
	}
	return nil
}
