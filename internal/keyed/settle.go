package keyed

import (
	"context"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/outage"
)

// Settler returns what settles a grant, for which Reserve was asked.
func (g *Queues) Settler(key string, q outage.Ask, a outage.Answer) func(context.Context, int64) error {
	r := &outage.Reservation{
		Limiter: g.name(), Observer: g.lanes.Observer(), Permits: q.Permits, Most: g.rule.Most, Granted: a, Once: true,
		Fail: func(op string, err error) error { return Fail(g.rule.Package, op, key, err) },
	}
	return r.Settle
}

// settle returns the [outage.Answer.Settle] of a grant of so many permits; nil if it can't be settled. It goes on
// in the background if ctx ends.
func settle(o *lane.Outcome, taken int64) func(ctx context.Context, used int64, then func(error)) error {
	if o.Charge == nil {
		return nil
	}
	return func(ctx context.Context, used int64, then func(error)) error {
		return lane.Detached(ctx, func(ctx context.Context) error {
			err := o.Charge(ctx, used-taken)
			then(err)
			return err
		})
	}
}
