package httplimit

import (
	"context"
	"fmt"

	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Settle sets what a request costs to actual permits. The handler calls it once that is known, with the context of its
// request or one derived from it. In all middlewares around the handler it settles the policies that have Policy.Settle,
// or if there are none, those that have Policy.Charge; others keep what they charged, or are charged by their Charge:
//
//	err := httplimit.Settle(r.Context(), answer.Usage.TotalTokens)
//
// If actual is less than the estimate, the rest is free at once. If it is more, the difference is charged even if it
// isn't free, and later requests are refused until enough has come back. If the request was charged nothing, Settle
// does nothing.
//
// A second call returns limit.ErrSettled. Policies whose limiter can't reserve keep the estimate, and Settle returns
// limit.ErrUnsupported. Without a middleware with Settle or Charge in a Policy it returns limit.ErrInvalidConfig. Other
// errors are those of Reservation.Settle: after limit.ErrUnavailable call it again with the same number. If ctx ends, Settle
// returns and finishes in the background. docs/http.md has more about requests that are not settled or not charged.
func Settle(ctx context.Context, actual int64) error {
	if err := middleware.Settle(ctx, actual); err != nil {
		return fmt.Errorf("httplimit: Settle: %w", err)
	}
	return nil
}

// Decisions returns what the policies of all middlewares around a handler have decided about its request, the
// outermost first, from the context of the request: for example how many tokens remain. Policies that
// did not decide are left out. With [WithShadow] some may not be Granted.
func Decisions(ctx context.Context) (all []Decided) {
	middleware.Decisions(ctx, func(name string, d limit.Decision) { all = append(all, Decided{name, d}) })
	return all
}
