package rratelimiter

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Redis is what a Client needs of a go-redis client: *redis.Client (a failover
// client is one too), *redis.ClusterClient and *redis.Ring all have it.
type Redis interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// Option configures a Client. A bad option does not panic: every call of the
// Client's limiters reports it, as ErrInvalidConfig, before Redis is touched.
type Option func(*Client) error

// WithClientID sets the id under which a Client keeps its own permits of
// PerClient limiters, as Redisson keeps those of each instance. Clients with
// the same id share them. Without it the id is a random UUID. Either way they go
// an interval after their last use, which is why the id must not be that of a
// Redisson instance: what that took since would go with them.
func WithClientID(id string) Option {
	return func(c *Client) error {
		if id == "" {
			return fmt.Errorf("%w: WithClientID: the id is empty", ErrInvalidConfig)
		}
		c.id = id
		return nil
	}
}

// WithNameMapper sets how a limiter's name becomes the name under which Redis
// holds it, as Redisson's NameMapper does; for example a prefix. The same name
// must always become the same.
func WithNameMapper(mapper func(name string) string) Option {
	return func(c *Client) error {
		if mapper == nil {
			return fmt.Errorf("%w: WithNameMapper: the mapper is nil", ErrInvalidConfig)
		}
		c.mapper = mapper
		return nil
	}
}

// LimiterOption configures a RateLimiter handle.
type LimiterOption func(*RateLimiter) error

// WithDefault gives a limiter that has no rate this one, in the same round trip
// as the first request for permits. A limiter that has one keeps it.
func WithDefault(cfg Config) LimiterOption {
	return func(l *RateLimiter) error {
		if err := cfg.validate(); err != nil {
			return fmt.Errorf("WithDefault: %w", err)
		}
		l.fallback, l.defaultInterval = cfg.text(), cfg.Interval
		return nil
	}
}
