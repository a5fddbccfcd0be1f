package faults_test

import (
	"context"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A policy does the same wherever it is set; middleware has the other rows of this table.
func TestWithFailure_IsAlikeWhereverItIsSet(t *testing.T) {
	t.Parallel()
	rate := rratelimiter.PerHour(8)
	for name, open := range map[string]func(c *rratelimiter.Client, own rratelimiter.LimiterOption) middlewaretest.Asking{
		"Client": func(c *rratelimiter.Client, _ rratelimiter.LimiterOption) middlewaretest.Asking {
			l := c.RateLimiter("orders", rratelimiter.WithDefault(rate))
			return func(ctx context.Context) (bool, error) { return l.TryAcquire(ctx, 1, 0) }
		},
		"Client, waiting": func(c *rratelimiter.Client, _ rratelimiter.LimiterOption) middlewaretest.Asking {
			l := c.RateLimiter("orders", rratelimiter.WithDefault(rate))
			return func(ctx context.Context) (bool, error) { return l.TryAcquire(ctx, 1, 10*time.Millisecond) }
		},
		"handle": func(c *rratelimiter.Client, own rratelimiter.LimiterOption) middlewaretest.Asking {
			l := c.RateLimiter("orders", rratelimiter.WithDefault(rate), own)
			return func(ctx context.Context) (bool, error) {
				d, err := l.Take(ctx, 1)
				return d.Granted, err
			}
		},
		"Keyed": func(c *rratelimiter.Client, own rratelimiter.LimiterOption) middlewaretest.Asking {
			l := c.Keyed("rate:", rate, own)
			return func(ctx context.Context) (bool, error) {
				d, err := l.Take(ctx, "ann", 1)
				return d.Granted, err
			}
		},
		"all": func(c *rratelimiter.Client, _ rratelimiter.LimiterOption) middlewaretest.Asking {
			a := c.RateLimiter("{shop}a", rratelimiter.WithDefault(rate))
			b := c.RateLimiter("{shop}b", rratelimiter.WithDefault(rate))
			return func(ctx context.Context) (bool, error) { return c.TryAcquireAll(ctx, 0, a.Claim(1), b.Claim(1)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			middlewaretest.Outages(t, middlewaretest.Guarded{
				Open: func(t *testing.T, rdb redistest.Client, how middlewaretest.Instead, _ func(error)) middlewaretest.Asking {
					t.Helper()
					policy := rratelimiter.WithFailure(*how.Failure)
					if name == "handle" || name == "Keyed" {
						return open(limitertest.NewClient(t, rdb), policy)
					}
					return open(limitertest.NewClient(t, rdb, policy), policy)
				},
			})
		})
	}
}
