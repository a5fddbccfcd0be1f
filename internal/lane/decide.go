package lane

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// decide sees a new request through, tells the observer, and lets it pass where the
// limiter only watches.
func (t *Groups) decide(ctx context.Context, op, key string, r *request) (limit.Decision, func(context.Context) error, error) {
	lanes := t.lanes
	if !lanes.observer.Watches() && lanes.failure == nil && !lanes.shadow {
		d, giveBack, err := t.take(ctx, key, r)
		return d, giveBack, Fail(t.rule.Package, op, key, err)
	}
	start, permits := time.Now(), r.permits
	d, by, giveBack, err := t.guarded(ctx, key, r)
	err = Fail(t.rule.Package, op, key, err)
	lanes.observer.Decided(ctx, limit.Decided{
		Limiter: t.name(), Call: op, Permits: permits, Source: by, Start: start, Shadow: lanes.shadow,
	}, d.Granted, err)
	if lanes.shadow && outage.InShadow(d.Granted, err) {
		d.Granted, d.RetryAfter, r.permits = true, 0, permits
		return d, func(context.Context) error { return nil }, nil
	}
	return d, giveBack, err
}

// guarded is take, and where Redis does not decide what the policy for that says.
func (t *Groups) guarded(ctx context.Context, key string, r *request) (
	d limit.Decision, by limit.Source, giveBack func(context.Context) error, err error,
) {
	if t.lanes.failure == nil {
		d, giveBack, err = t.take(ctx, key, r)
		return d, limit.FromRedis, giveBack, err
	}
	if d, err := t.check(ctx, key, r.permits); err != nil {
		return d, "", nil, err
	}
	guard := t.lanes.guard
	undecided, err := guard.Ask(ctx, &t.lanes.Of(ctx, key).Breaker, func() bool { return t.answers(key) }, func() (err error) {
		d, giveBack, err = t.take(ctx, key, r)
		return err
	})
	if !undecided {
		return d, limit.FromRedis, giveBack, err
	}
	rule := local.Rule{Permits: t.rule.Usual, Window: t.rule.Window}
	if r.upTo {
		r.permits, d, by, err = guard.UpToInstead(*t.lanes.failure, key, r.permits, rule, err)
		return d, by, nil, err
	}
	return guard.Instead(*t.lanes.failure, key, r.permits, rule, err)
}

// answers tells whether the server of a key does.
func (t *Groups) answers(key string) bool {
	_, err := script.Read(context.Background(), t.lanes.conn, lua.TTL, script.KeysOf(key))
	return !errors.Is(script.Outage(err), limit.ErrUnavailable)
}

// name is what observers call the limiter.
func (t *Groups) name() string { return cmp.Or(t.lanes.name, t.rule.Package) }
