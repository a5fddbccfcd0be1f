package rratelimiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/clients"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	sizes "github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/notify"
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
// the same id share them. Without it the id is a random UUID. Either way, without
// a KeepAlive time the permits' keys expire an interval after this Client has last
// used them. So the id must not be that of a Redisson instance: what that instance has
// taken since would go with them.
func WithClientID(id string) Option {
	return clientOption(func(c *Client) error {
		if id == "" {
			return fmt.Errorf("%w: WithClientID: the id is empty", ErrInvalidConfig)
		}
		c.id = id
		return nil
	})
}

// WithClientName has Redis know what the Client is called, such as "orders-7f9c", so
// that rrl show and package httplimit/admin can tell whose a limiter's permits are. Several
// Clients may have one name. It is written to the sorted set "rratelimiter:clients", beside
// the Client's id, in the background when the Client first asks for permits and once
// an hour while it does; it is known for two days after that. No call waits for it,
// and where it can't be written no call fails: [limit.NameNotNoted] tells. A user of
// least rights needs the key too.
//
// A name has 1 to 128 bytes of printable UTF-8. Beside Redissons before 3.17.0, grants
// bear no mark of their Client, whatever its name.
func WithClientName(name string) Option {
	return clientOption(func(c *Client) error {
		if err := clients.CheckName(name); err != nil {
			return err
		}
		c.name = name
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
func WithCallTimeout(d time.Duration) Option { return sharedOption(limit.WithCallTimeout(d)) }

// WithObserver has an observer told what the Client's limiters do: decisions, round
// trips, callers that wait, leases, and what is rare. See [limit.Observer].
func WithObserver(observer limit.Observer) Option { return sharedOption(limit.WithObserver(observer)) }

// WithLogger has a log told of what is rare, and of what an operator may want to know:
// see [limit.EventKind].
func WithLogger(log *slog.Logger) Option { return sharedOption(limit.WithLogger(log)) }

// WithReplicas makes grants durable: one counts once n replicas have it, so that no
// failover to one of these grants its permits again. Where fewer than n confirm within
// wait, the call fails with [ErrNotReplicated] and its permits go back. It costs a
// replica's answer for each round trip, not for each call: those that go together wait
// together, by one WAIT behind their scripts.
//
// Refusals are answers as ever. They come with the WAIT of their round trip, so that
// they too take up to wait where a grant beside them, or one before on the connection,
// is not confirmed. A lease counts as a grant. What changes limiters, SetRate and
// Release among them, is not waited for. ErrNotReplicated is no outage: Redis answers,
// and WithFailure leaves the error to the caller; with WithShadow the call passes.
//
// wait is a whole number of milliseconds, 1 at least and a third of the call timeout at
// most, and below the ReadTimeout of the Redis client. A Redis without replicas fails
// each grant. Of a cluster or a Ring, round trips go by the clients of its nodes: hooks
// of the whole do not see them. An ACL must allow the command wait.
func WithReplicas(n int, wait time.Duration) Option {
	return clientOption(func(c *Client) error {
		if n < 1 || wait < time.Millisecond || wait%time.Millisecond != 0 {
			return fmt.Errorf("%w: WithReplicas: %d replicas within %v: at least 1, and a whole number of milliseconds, at least 1", ErrInvalidConfig, n, wait)
		}
		c.replicas, c.replicasWait = n, wait
		return nil
	})
}

// checkReplicas is for what can only be said of all options together.
func (c *Client) checkReplicas() error {
	if most := c.options.CallTimeout / 3; c.replicasWait > most {
		return fmt.Errorf("%w: WithReplicas: waiting for %v is more than a third of the call timeout, %v: see WithCallTimeout",
			ErrInvalidConfig, c.replicasWait, c.options.CallTimeout)
	}
	return nil
}

// WithRedissonVersion names the oldest Redisson, from 3.12.0 to 4.7.0, that
// shares the Client's limiters. It decides what the Client writes, so that this
// version reads it right; what others have written is read whatever it is.
// Without the option that is 3.35.0: if any program that shares a limiter uses
// Redisson before that, pass the oldest version in use. A newer version than 4.7.0
// counts as 4.7.0; the observer and the log receive [limit.RedissonUntested] once.
//
//	versions         what stands for a grant
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
// Not all versions can share a limiter with each other: see the table in
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
// as the first request for permits. A limiter that has one keeps it, unless that is the
// default of a Client that was made before: then this one replaces it, and permits in use
// stay so; a change of type starts full. So a default that is changed in the code reaches
// limiters in use. A rate that SetRate, UpdateRate, TrySetRate, WithRate or Redisson has
// set stays, as does one of which nothing is known, such as that of a limiter which an
// earlier version of this package made.
//
// The handle's first request compares, and one a minute after that, by the same script
// call. Programs that do not agree do not fight: the default of the Client made last
// holds, and within one Client that which made the limiter. The observer and the log are told once of
// [limit.RateReplaced] and [limit.RateDiffers]. What only reads, such as Peek, changes
// nothing.
func WithDefault(cfg Config) LimiterOption {
	return limiterOption(func(l *RateLimiter) error {
		if err := cfg.validate(); err != nil {
			return fmt.Errorf("WithDefault: %w", err)
		}
		return l.comesWith(cfg, cfg.text()+" "+l.client.began)
	})
}

// WithRate has a limiter have this rate: the one in the code wins. The handle's first
// call that asks for permits, Peek excepted, reads the rate that Redis has. Where there
// is none it sets this one; where that is another it sets this one too and keeps permits
// in use, as UpdateRate with [KeepState] does; a change of type starts full. After that
// the handle compares nothing any more, so that programs that do not agree do not fight,
// and calls cost what they cost without WithRate: the rate that was set last holds, who
// ever set it, Redisson or an operator at run time included. A limiter that has gone is
// made anew with the handle's, as by [WithDefault]. Keep the handle: a new one looks anew.
//
// The observer and the log are told of [limit.RateReplaced], where the first call found
// another rate, and of [limit.RateDiffers], where an answer shows that the rate is
// another one since: not every answer tells. Peek changes nothing: before the first of
// the other calls it answers by the rate that Redis has. Where that call can't find out
// or set the rate it fails, takes nothing, and the next one tries again.
//
// A [Client.Keyed] takes no such option, since keys may have rates of their own; nor is it
// for one limiter together with WithDefault, ErrInvalidConfig. Where Redissons before
// 3.13.3 share the limiter, it is ErrUnsupported.
func WithRate(cfg Config) LimiterOption {
	return limiterOption(func(l *RateLimiter) error {
		if err := cfg.validate(); err != nil {
			return fmt.Errorf("WithRate: %w", err)
		}
		if l.client.rules.KeepsNoMembers() {
			return l.client.rules.Unsupported("WithRate")
		}
		l.facts.Want = &engine.Want{}
		return l.comesWith(cfg, cfg.text())
	})
}

// comesWith notes the rate that WithDefault or WithRate gives.
func (l *RateLimiter) comesWith(cfg Config, text string) error {
	if l.facts.Want != nil && l.facts.Rate.Permits != 0 {
		return fmt.Errorf("%w: WithRate is given together with another rate: one option says what the rate is", ErrInvalidConfig)
	}
	l.facts.Fallback, l.facts.Rate = text, cfg.rate()
	return nil
}

// Lease bounds how many permits a handle takes ahead, and for how long: see [WithLease].
// The zero Lease is right unless a program must take less: it follows demand.
type Lease struct {
	// Permits is the most that one lease holds: 1 to MaxPermits. 0 stands for MaxPermits:
	// then a lease holds what the handle is about to use in two thirds of its life, but
	// no more than a 16th of what is free or what the handle lately used in that time.
	Permits int64

	// Life is how long a lease lives, from the moment at which it was asked for.
	// It must be shorter than the limiter's interval, and is half of that at most.
	// 0 stands for a twentieth of the interval, such as 50ms of a second, for up to three
	// twentieths if many programs share the limiter, and for up to half if answers are slow.
	Life time.Duration
}

// WithLease takes permits ahead: a request that goes to Redis brings more than it asks
// for, charged at once, and further requests are served from these without a round trip,
// as long as the lease lives. What is charged obeys the limit exactly; what is used obeys
// the rate for each span of the interval less the lease's life. docs/reference.md says how
// much is taken ahead, when it goes back, and what Take then tells.
//
// TryAcquire, Acquire, Take and TakeUpTo are served so, and through [Client.Keyed] the
// middleware. To others, Reserve, Peek, AvailablePermits and TryAcquireAll included, permits
// of a lease are in use. Changes by other programs are noticed when the lease ends, and a
// limiter with a KeepAlive time may go earlier by the lease's life. A lease belongs to its
// handle, so keep the handle.
//
// Bad values, an interval of WithDefault or WithRate not above Life among them, are
// ErrInvalidConfig; beside Redissons before 3.35 leases are ErrUnsupported.
func WithLease(lease Lease) LimiterOption {
	return limiterOption(func(l *RateLimiter) error {
		switch {
		case lease.Permits < 0 || lease.Permits > MaxPermits:
			return fmt.Errorf("%w: WithLease: %d permits are not between 0 and %d", ErrInvalidConfig, lease.Permits, int64(MaxPermits))
		case lease.Life < 0:
			return fmt.Errorf("%w: WithLease: the life %v is below 0", ErrInvalidConfig, lease.Life)
		case !l.client.rules.Merge:
			return fmt.Errorf("%w: WithLease: one member for many requests is read right by Redisson 3.35 and newer only, and WithRedissonVersion names %s",
				ErrUnsupported, l.client.rules.Version)
		}
		l.facts.Lease = &sizes.Planner{Most: cmp.Or(lease.Permits, MaxPermits), Want: lease.Life}
		return nil
	})
}

// checkLease is for what can only be said of all options together.
func (l *RateLimiter) checkLease() error {
	if interval := l.facts.Rate.Interval; l.facts.Lease != nil && interval > 0 && l.facts.Lease.Want >= interval {
		return fmt.Errorf("%w: WithLease: the life %v is not shorter than the interval %v", ErrInvalidConfig, l.facts.Lease.Want, interval)
	}
	return nil
}

// WithRefusalCache remembers that permits were refused: a limiter known to be exhausted
// is not asked again before the moment that the server named. It counts for Take, TakeUpTo
// and TryAcquire with a timeout of 0 or less, of at least as many permits as were refused.
//
// What this Client gives back or changes ends the refusal early, and what other Go programs
// do with [WithNotices]. What Redisson releases or sets is noticed at the moment named. A
// limiter with a time to live is asked when half of that is over, if that comes first; to
// know, a refusal for more than 100ms of one without a KeepAlive time costs one more, small
// script call. docs/reference.md says what Take tells meanwhile.
//
// With [WithLease] a refusal lasts up to 0.15 of the interval longer, so that programs that
// share a limiter come back one after another.
//
// What is remembered belongs to the handle, and handles of one name do not share it.
func WithRefusalCache(opts ...RefusalOption) LimiterOption {
	return limiterOption(func(l *RateLimiter) (err error) {
		l.facts.Refusals = l.client.engine.NewRefusals(l.keys.Config)
		for _, opt := range opts {
			if opt != nil {
				err = errors.Join(err, opt(l))
			}
		}
		return err
	})
}

// RefusalOption configures WithRefusalCache.
type RefusalOption func(*RateLimiter) error

// WithNotices has the handle tell other programs of what it changes by Release,
// SetRate and the like, and end its refusals when it is told: by PUBLISH and
// SUBSCRIBE on the channel "{name}:changed", braces as in the limiter's keys. The
// guarantee: at best a refusal ends with the change; where the message is lost
// or nobody is subscribed yet, at the moment that the server named.
//
// A Client subscribes by one connection, for all its limiters, as long as it
// remembers refusals. A Redis given to New that can't Subscribe and Publish, as
// go-redis' clients can, is ErrUnsupported. On a cluster messages go to all
// nodes. An ACL must allow the commands and the channel.
func WithNotices() RefusalOption {
	return func(l *RateLimiter) error {
		if !notify.Can(l.client.rdb) {
			return fmt.Errorf("%w: %w: WithNotices: a %T has no Subscribe and Publish", ErrInvalidConfig, ErrUnsupported, l.client.rdb)
		}
		l.facts.Channel = notify.Channel(l.keys.Value)
		return nil
	}
}
