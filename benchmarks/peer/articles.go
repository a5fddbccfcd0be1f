package peer

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/benchmarks/load"
	"github.com/rratelimiter/rratelimiter/internal/test/articles"
)

// eval runs a rule of an article on one key, as one script.
type eval interface {
	Eval(ctx context.Context) (int64, error)
}

// The scripts that articles show and many services run, with their faults.
var fromArticles = []Kind{
	article("fixed window", "GET; SET EX or INCR, in one script", false, func(rdb *redis.Client, key string, rule Rule) eval {
		return articles.FixedWindow{Redis: rdb, Key: key, Limit: rule.Limit, Seconds: seconds(rule)}
	}),
	article("counter", "INCR, EXPIRE at 1, in one script", false, func(rdb *redis.Client, key string, rule Rule) eval {
		return articles.Counter{Redis: rdb, Key: key, Limit: rule.Limit, Seconds: seconds(rule)}
	}),
	article("sliding log", "drop, count and add to a sorted set, in one script; times are the caller's", true,
		func(rdb *redis.Client, key string, rule Rule) eval {
			return articles.SlidingLog{Redis: rdb, Key: key, Threshold: rule.Limit, Seconds: seconds(rule), Now: time.Now}
		}),
	article("token bucket", "two strings, in one script; refilled as a whole", false, func(rdb *redis.Client, key string, rule Rule) eval {
		return articles.TokenBucket{
			Redis: rdb, Key: key, Capacity: rule.Limit, Refill: rule.Limit, Seconds: seconds(rule), Cost: 1, Now: time.Now,
		}
	}),
}

func seconds(rule Rule) int64 { return int64(rule.Interval / time.Second) }

func article(name, setup string, isLog bool, of func(rdb *redis.Client, key string, rule Rule) eval) Kind {
	return Kind{
		Name:     name,
		Setup:    setup,
		Log:      isLog,
		Commands: map[string]float64{"evalsha": 0, "eval": 0},
		Open: open(func(_ context.Context, rdb *redis.Client, names []string, rule Rule) (load.Take, error) {
			rules := make([]eval, len(names))
			for i, key := range names {
				rules[i] = of(rdb, key, rule)
			}
			_, isBucket := rules[0].(articles.TokenBucket)
			return func(ctx context.Context, i int) (bool, error) {
				n, err := rules[i].Eval(ctx)
				if err != nil {
					return false, fmt.Errorf("%s: %w", name, err)
				}
				// The token bucket answers with the tokens left, which may be 0.
				return n > 0 || n == 0 && isBucket, nil
			}, nil
		}),
	}
}
