package peer

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/benchmarks/load"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// The module's other limiters, which share their keys with the articles' scripts.
var others = []Kind{
	other("fixedwindow", "one Limiter: `Take(ctx, key, 1)`", false, func(rdb *redis.Client, rule Rule) limit.Limiter {
		return fixedwindow.New(rratelimiter.New(rdb), fixedwindow.Config{Limit: rule.Limit, Window: rule.Interval})
	}),
	other("slidinglog", "one Limiter: `Take(ctx, key, 1)`", true, func(rdb *redis.Client, rule Rule) limit.Limiter {
		return slidinglog.New(rratelimiter.New(rdb), slidinglog.Config{Limit: rule.Limit, Window: rule.Interval})
	}),
	other("tokenbucket", "one Limiter, refilled as a whole: `Take(ctx, key, 1)`", false, func(rdb *redis.Client, rule Rule) limit.Limiter {
		return tokenbucket.New(rratelimiter.New(rdb), tokenbucket.Config{Capacity: rule.Limit, Refill: rule.Limit, Interval: rule.Interval})
	}),
}

func other(pkg, setup string, isLog bool, of func(*redis.Client, Rule) limit.Limiter) Kind {
	return Kind{
		Name:     Ours + " " + pkg,
		Setup:    setup,
		Log:      isLog,
		Commands: map[string]float64{"evalsha": 0, "eval": 0},
		Open: open(func(_ context.Context, rdb *redis.Client, names []string, rule Rule) (load.Take, error) {
			limiter := of(rdb, rule)
			return func(ctx context.Context, i int) (bool, error) {
				d, err := limiter.Take(ctx, names[i], 1)
				return d.Granted, err
			}, nil
		}),
	}
}
