package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// kept returns a rate whose limiter goes a minute after its last use.
func kept(rate int64, interval time.Duration) rratelimiter.Config {
	return rratelimiter.Config{Rate: rate, Interval: interval, KeepAlive: testLife}
}

// limiter returns a limiter of the run, by a Client of its own, and what closes it.
func (t *selfTest) limiter(ctx context.Context, id string) (l *rratelimiter.RateLimiter, keys redisson.Keys, done func()) {
	var opts []rratelimiter.Option
	if id != "" {
		opts = append(opts, rratelimiter.WithClientID(id))
	}
	client := rratelimiter.New(t.rdb, append(opts, rratelimiter.WithCallTimeout(testPatience))...)
	keys = redisson.KeysOf(t.name, id)
	t.keys = append(t.keys, keys.List()...)
	return client.RateLimiter(t.name), keys, func() { _ = client.Close(context.WithoutCancel(ctx)) }
}

// steps calls each until one fails or gives a wrong answer.
func steps(ctx context.Context, all []step) error {
	for _, s := range all {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		got, err := s.do()
		if err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
		if err := same(s.what, got, s.want); err != nil {
			return err
		}
	}
	return nil
}

type step struct {
	what string
	want any
	do   func() (any, error)
}

// shared plays this module's part of the golden histories of Redisson.
func (t *selfTest) shared(ctx context.Context) error {
	return t.inTime(ctx, 2*time.Second, func(interval time.Duration) error { return t.history(ctx, interval) })
}

func (t *selfTest) history(ctx context.Context, interval time.Duration) error {
	l, keys, done := t.limiter(ctx, "")
	defer done()
	t.keys = append(t.keys, redisson.KeysOf("{"+t.name+"}renamed", "").List()...)
	take := func(n int64) func() (any, error) {
		return func() (any, error) {
			d, err := l.Take(ctx, n)
			return fmt.Sprint(d.Granted, d.Remaining, d.Limit, d.RetryAfter > 0 && d.RetryAfter <= interval), err
		}
	}
	free := func() (any, error) { return l.AvailablePermits(ctx) }
	both := func() (any, error) {
		value, err := t.rdb.Get(ctx, keys.Value).Int64()
		members, err2 := t.rdb.ZCard(ctx, keys.Permits).Result()
		return fmt.Sprint(value, members), errors.Join(err, err2)
	}
	return steps(ctx, []step{
		{"TrySetRate", true, func() (any, error) { return l.TrySetRate(ctx, kept(10, interval)) }},
		{"TrySetRate again", false, func() (any, error) { return l.TrySetRate(ctx, kept(5, interval)) }},
		{"Take(3)", "true 7 10 false", take(3)},
		{"Take(8)", "false 7 10 true", take(8)},
		{"the keys", "7 1", both},
		{"Release(1)", 8, func() (any, error) { return must(l.Release(ctx, 1), free) }},
		{"SetRate with KeepState", 18, func() (any, error) { return must(l.SetRate(ctx, kept(20, interval), rratelimiter.KeepState()), free) }},
		{"TakeUpTo(30)", 18, func() (any, error) {
			n, _, err := l.TakeUpTo(ctx, 30)
			return n, err
		}},
		{"TryAcquire at once", false, func() (any, error) { return l.TryAcquire(ctx, 1, 0) }},
		{"TryAcquire within the interval", true, func() (any, error) { return l.TryAcquire(ctx, 1, 2*interval) }},
		{"Reset", 20, func() (any, error) { return must(l.Reset(ctx), free) }},
		{"TTL", true, func() (any, error) {
			ttl, expires, err := l.TTL(ctx)
			return expires && ttl > testLife/2 && ttl <= testLife, err
		}},
		{"Rename", false, func() (any, error) {
			return must(l.Rename(ctx, "{"+t.name+"}renamed"), func() (any, error) { return l.Exists(ctx) })
		}},
		{"Delete", false, func() (any, error) { return l.Delete(ctx) }},
	})
}

// must calls then unless there is an error.
func must(err error, then func() (any, error)) (any, error) {
	if err != nil {
		return nil, err
	}
	return then()
}

func (t *selfTest) perClient(ctx context.Context) error {
	first, _, closeFirst := t.limiter(ctx, "first")
	defer closeFirst()
	second, _, closeSecond := t.limiter(ctx, "second")
	defer closeSecond()
	cfg := kept(5, time.Minute)
	cfg.Type = rratelimiter.PerClient
	return steps(ctx, []step{
		{"SetRate", nil, func() (any, error) { return nil, first.SetRate(ctx, cfg) }},
		{"the first client's permits", true, func() (any, error) { return first.TryAcquire(ctx, 5, 0) }},
		{"more of them", false, func() (any, error) { return first.TryAcquire(ctx, 1, 0) }},
		{"the second client's permits", true, func() (any, error) { return second.TryAcquire(ctx, 4, 0) }},
		{"what it has left", 1, func() (any, error) { return second.AvailablePermits(ctx) }},
		{"Delete", true, func() (any, error) { return first.Delete(ctx) }},
	})
}

// others takes all permits of each of the other limiters, and waits until it has more.
func (t *selfTest) others(ctx context.Context) error {
	const n = 3
	client := rratelimiter.New(t.rdb, rratelimiter.WithCallTimeout(testPatience))
	defer func() { _ = client.Close(context.WithoutCancel(ctx)) }()
	return t.inTime(ctx, time.Second, func(span time.Duration) error {
		return t.takesAll(ctx, n, span, map[string]limit.Limiter{
			"fixedwindow": fixedwindow.New(client, fixedwindow.Config{Limit: n, Window: span}),
			"slidinglog":  slidinglog.New(client, slidinglog.Config{Limit: n, Window: span}),
			"tokenbucket": tokenbucket.New(client, tokenbucket.Config{Capacity: n, Refill: n, Interval: span}),
		})
	})
}

// takesAll takes the n permits that each limiter has in a span, and waits for more.
func (t *selfTest) takesAll(ctx context.Context, n int64, span time.Duration, limiters map[string]limit.Limiter) error {
	for name, l := range limiters {
		key := t.key(name)
		t.keys = append(t.keys, key+"_time")
		take := func(n int64) func() (any, error) {
			return func() (any, error) {
				// Given up, it would go on, and make keys again that were removed.
				d, err := l.Take(context.WithoutCancel(ctx), key, n)
				if !d.Granted && d.RetryAfter <= span {
					pause(ctx, d.RetryAfter+10*time.Millisecond)
				}
				return fmt.Sprint(d.Granted, d.RetryAfter > 0 && d.RetryAfter <= span), err
			}
		}
		if err := steps(ctx, []step{
			{name + ", all that there is", "true false", take(n)},
			{name + ", one more", "false true", take(1)},
			{name + ", one when there is one", "true false", take(1)},
		}); err != nil {
			return err
		}
	}
	return nil
}

func (t *selfTest) wrongTypes(ctx context.Context) error {
	l, keys, done := t.limiter(ctx, "")
	defer done()
	if err := l.SetRate(ctx, kept(10, time.Minute)); err != nil {
		return err
	}
	if err := t.rdb.Set(ctx, keys.Permits, "text", testLife).Err(); err != nil {
		return err
	}
	return corrupt(ctx, "a text in place of the permits", l)
}

// corrupt returns an error unless the limiter's state is found to be none.
func corrupt(ctx context.Context, what string, l *rratelimiter.RateLimiter) error {
	granted, err := l.TryAcquire(ctx, 1, 0)
	switch {
	case err == nil:
		return fmt.Errorf("%s: %v instead of ErrCorrupt", what, granted)
	case !errors.Is(err, rratelimiter.ErrCorrupt):
		return fmt.Errorf("%s is not ErrCorrupt: %w", what, err)
	}
	return nil
}
