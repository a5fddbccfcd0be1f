package peer

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/benchmarks/load"
)

// The names of ours, which is compared with all others: as it is, and with what
// an application may ask for.
const (
	Ours       = "rratelimiter"
	OursLease  = Ours + ", lease"
	OursMemory = Ours + ", refusal cache"
)

// ours has a line for each way to use it.
var ours = []Kind{
	oursWith(Ours, "one Client, one handle kept for each limiter, no options: `TryAcquire(ctx, 1, 0)`", nil),
	ahead(oursWith(OursLease, "`WithLease`, up to a million permits for a twentieth of the interval", nil,
		rratelimiter.WithLease(rratelimiter.Lease{Permits: 1_000_000}))),
	oursWith(OursMemory, "`WithRefusalCache`", nil, rratelimiter.WithRefusalCache()),
}

// ahead is for a peer that charges permits before they are used.
func ahead(k Kind) Kind {
	k.Value = nil
	return k
}

func oursWith(name, setup string, opts []rratelimiter.Option, each ...rratelimiter.LimiterOption) Kind {
	return Kind{
		Name:     name,
		Setup:    setup,
		Aim:      true,
		Log:      true,
		Value:    valueKey,
		Commands: map[string]float64{"evalsha": 0, "eval": 0},
		Open: func(_ context.Context, addr string, connections int) (Peer, error) {
			rdb := NewClient(addr, connections)
			client := rratelimiter.New(rdb, opts...)
			return &inGo{
				rdb: rdb,
				make: func(ctx context.Context, _ *redis.Client, names []string, rule Rule) (load.Take, error) {
					if err := client.Close(ctx); err != nil {
						return nil, err
					}
					client = rratelimiter.New(rdb, opts...)
					return takeOurs(ctx, client, names, rule, each)
				},
				closes: func() error { return errors.Join(client.Close(context.Background()), rdb.Close()) },
			}, nil
		},
	}
}

func takeOurs(
	ctx context.Context, client *rratelimiter.Client, names []string, rule Rule, opts []rratelimiter.LimiterOption,
) (load.Take, error) {
	limiters := make([]*rratelimiter.RateLimiter, len(names))
	for i, name := range names {
		limiters[i] = client.RateLimiter(name, opts...)
	}
	_, err := load.Each(ctx, len(names), func(ctx context.Context, i int) (bool, error) {
		return true, limiters[i].SetRate(ctx, rratelimiter.Config{Rate: rule.Limit, Interval: rule.Interval})
	})
	return func(ctx context.Context, i int) (bool, error) { return limiters[i].TryAcquire(ctx, 1, 0) }, err
}

// valueKey is where Redisson, and so ours, keeps the free permits.
func valueKey(name string) string { return "{" + name + "}:value" }
