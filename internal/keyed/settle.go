package keyed

import (
	"context"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/outage"
)

// Settler returns what settles a grant, for which Reserve was asked.
func (g *Queues) Settler(q outage.Ask, a outage.Answer) func(context.Context, int64) error {
	return g.policy.Settler(g, q, a)
}

// settle returns the [outage.Answer.Settle] of a grant of so many permits; nil if it can't be settled. It goes on
// in the background if ctx ends.
func settle(o *lane.Outcome, taken int64) func(ctx context.Context, used int64, then func(error)) error {
	if o.Charge == nil {
		return nil
	}
	return func(ctx context.Context, used int64, then func(error)) error {
		return lane.Detached(ctx, 0, func(ctx context.Context) error {
			err := o.Charge(ctx, used-taken)
			then(err)
			return err
		})
	}
}
