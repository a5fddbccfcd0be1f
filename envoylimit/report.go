package envoylimit

import (
	"cmp"
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
)

// unobserved completes answers: only a whole call shows what it has granted.
var unobserved outage.Policy

// report tells observers what a call that was decided was granted, or which limits have refused it; and what failed.
func (c *call) report(ctx context.Context, decided bool) {
	if c.policy == nil || !c.policy.Observer.Watches() {
		return
	}
	for _, q := range c.questions {
		err := q.err
		if q.costly {
			err = limit.ErrPermitsExceedRate
		}
		granted := err == nil && !q.over && decided && c.passes
		if !granted && err == nil && !q.over || q.start.IsZero() && !q.costly {
			continue
		}
		c.policy.Observer.Decided(ctx, limit.Decided{
			Limiter: q.metric, Call: callName, Permits: q.permits, Source: q.by, Start: cmp.Or(q.start, time.Now()),
			Shadow: q.shadow || c.service.shadow, Limit: q.decision.Limit, Remaining: q.decision.Remaining,
		}, granted, err)
	}
}
