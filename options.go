package rratelimiter

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Redis is what a Client needs of a go-redis client: *redis.Client (a failover
// client is one too), *redis.ClusterClient and *redis.Ring all have it.
type Redis interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// Option configures a Client. A bad option does not panic: every call of the
// Client's limiters reports it, as ErrInvalidConfig, before Redis is touched.
type Option interface{ client(c *Client) error }

// LimiterOption configures a RateLimiter handle.
type LimiterOption interface{ limiter(l *RateLimiter) error }

type clientOption func(*Client) error

func (o clientOption) client(c *Client) error { return o(c) }

type limiterOption func(*RateLimiter) error

func (o limiterOption) limiter(l *RateLimiter) error { return o(l) }

// WithClientID sets the id under which a Client keeps its own permits of
// PerClient limiters, as Redisson keeps those of each instance. Clients with
// the same id share them. Without it the id is a random UUID. Either way they go
// an interval after their last use, which is why the id must not be that of a
// Redisson instance: what that took since would go with them.
func WithClientID(id string) Option {
	return clientOption(func(c *Client) error {
		if id == "" {
			return fmt.Errorf("%w: WithClientID: the id is empty", ErrInvalidConfig)
		}
		c.id = id
		return nil
	})
}

// WithNameMapper sets how a limiter's name becomes the name under which Redis
// holds it, as Redisson's NameMapper does; for example a prefix. The same name
// must always become the same.
func WithNameMapper(mapper func(name string) string) Option {
	return clientOption(func(c *Client) error {
		if mapper == nil {
			return fmt.Errorf("%w: WithNameMapper: the mapper is nil", ErrInvalidConfig)
		}
		c.mapper = mapper
		return nil
	})
}

// WithCallTimeout bounds how long a question to Redis may go unanswered: all its
// attempts and the time before it is sent together. After that the call ends in
// [ErrUnavailable]. 3 seconds unless set; at least 3 milliseconds.
func WithCallTimeout(d time.Duration) Option {
	return clientOption(func(c *Client) error {
		if d < 3*time.Millisecond {
			return fmt.Errorf("%w: WithCallTimeout: %v is below 3ms", ErrInvalidConfig, d)
		}
		c.timeout = d
		return nil
	})
}

// WithObserver has an observer told what the Client's limiters do: decisions, round
// trips, callers that wait, leases, and what is rare. See [limit.Observer].
func WithObserver(observer limit.Observer) Option {
	return clientOption(func(c *Client) error {
		if observer == nil {
			return fmt.Errorf("%w: WithObserver: the observer is nil", ErrInvalidConfig)
		}
		c.watch = observer
		return nil
	})
}

// WithLogger has a log told of what is rare, and of what an operator may want to know:
// see [limit.EventKind].
func WithLogger(log *slog.Logger) Option {
	return clientOption(func(c *Client) error {
		if log == nil {
			return fmt.Errorf("%w: WithLogger: the logger is nil", ErrInvalidConfig)
		}
		c.log = log
		return nil
	})
}

// WithRedissonVersion names the oldest Redisson, from 3.12.0 to 4.7.0, that
// shares the Client's limiters. It decides what the Client writes, so that this
// release reads it right; what others have written is read whatever it is.
// Without the option that is 3.35.0: whoever still runs an older one must name
// it.
//
//	releases         what stands for a grant
//	3.12.0-3.13.2    nothing: the value counts a fixed window, so that an interval
//	                 around its edge can see twice the rate. Release and
//	                 KeepState are ErrUnsupported, and a request whose answer was
//	                 lost is not repeated: ErrUnknownOutcome
//	3.13.3-3.16.3    a member of 8 bytes
//	3.16.4-3.16.8    a member of 20 bytes
//	3.17.0-3.20.1    a member of 13 bytes
//	from 3.21.0      a member of 21 bytes
//	from 3.35.0      one member for all requests that go together
//
// Not all releases can share a limiter with each other: see the table in
// docs/compatibility.md.
func WithRedissonVersion(version string) Option {
	return clientOption(func(c *Client) error {
		r, err := redisson.RulesFor(version)
		if err != nil {
			return err
		}
		c.rules = r
		return nil
	})
}

// WithDefault gives a limiter that has no rate this one, in the same round trip
// as the first request for permits. A limiter that has one keeps it.
func WithDefault(cfg Config) LimiterOption {
	return limiterOption(func(l *RateLimiter) error {
		if err := cfg.validate(); err != nil {
			return fmt.Errorf("WithDefault: %w", err)
		}
		l.facts.Fallback, l.fallback = cfg.text(), cfg
		return nil
	})
}
