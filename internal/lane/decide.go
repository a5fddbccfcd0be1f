package lane

import (
	"cmp"
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// decide sees a new request through, tells the observer, and lets it pass where the
// limiter only watches.
func (g *Groups) decide(ctx context.Context, op, key string, r *request) (
	d limit.Decision, taken int64, giveBack func(context.Context) error, err error,
) {
	o, observer := &g.rule.Options, g.lanes.observer
	if !observer.Watches() && o.Failure == nil && !o.Shadow {
		d, giveBack, err = g.take(ctx, key, r)
		if err != nil {
			return d, 0, nil, Fail(g.rule.Package, op, key, err)
		}
		return d, r.taken, giveBack, nil
	}
	start := time.Now()
	d, taken, by, giveBack, err := g.guarded(ctx, key, r)
	err = Fail(g.rule.Package, op, key, err)
	observer.Decided(ctx, limit.Decided{
		Limiter: g.name(), Call: op, Permits: r.permits, Source: by, Start: start, Shadow: o.Shadow,
	}, d.Granted, err)
	switch {
	case !o.Shadow:
	case outage.InShadow(ctx, d.Granted, err):
		d.Granted, d.RetryAfter = true, 0
		return d, r.permits, func(context.Context) error { return nil }, nil
	case err == nil:
		taken = r.permits
	}
	return d, taken, giveBack, err
}

// guarded is take, and where Redis does not decide what the policy for that says.
func (g *Groups) guarded(ctx context.Context, key string, r *request) (
	d limit.Decision, taken int64, by limit.Source, giveBack func(context.Context) error, err error,
) {
	if d, err := g.check(ctx, key, r.permits); err != nil {
		return d, 0, "", nil, err
	}
	ask := func() (bool, error) {
		if d, giveBack, err = g.send(ctx, key, r); err == nil {
			taken = r.taken
		}
		return true, err // a refusal does not make anybody wait here
	}
	how := g.rule.Options.Failure
	if how == nil {
		_, err = ask()
		return d, taken, limit.FromRedis, giveBack, err
	}
	answers := func() bool { return script.Answers(g.lanes, script.KeysOf(key), cmp.Or(g.rule.Write, "SET")) }
	undecided, err := g.guard.Ask(g.lanes.Breaker(ctx, key), answers, ask)
	if !undecided {
		return d, taken, limit.FromRedis, giveBack, err
	}
	rule := local.Rule{Permits: g.rule.Usual, Window: g.rule.Window}
	if r.upTo {
		taken, d, by, err = g.guard.UpToInstead(*how, outage.Account{Limiter: key}, r.permits, rule, err)
		return d, taken, by, nil, err
	}
	d, by, giveBack, err = g.guard.Instead(*how, outage.Account{Limiter: key}, r.permits, rule, err)
	return d, r.permits, by, giveBack, err
}

// name is what observers call the limiter.
func (g *Groups) name() string { return cmp.Or(g.rule.Options.Name, g.rule.Package) }

// givenUp tells the observer of permits that come back by themselves only, if they
// were taken.
func (g *Groups) givenUp(permits int64, err error) {
	g.lanes.observer.Happened(limit.Event{Kind: limit.PermitsGivenUp, Limiter: g.name(), Permits: permits, Err: err})
}
