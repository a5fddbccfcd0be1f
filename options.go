package rratelimiter

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/clients"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	sizes "github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Redis is the part of a go-redis client that a Client uses. *redis.Client (a failover client
// is one too), *redis.ClusterClient and *redis.Ring implement it. A wrapper that embeds one is used like it: its Options
// tell the size of the pool and ContextTimeoutEnabled, other methods where a key is. Without Options the pool is taken
// to have 20 connections, and each call runs on a goroutine of the Client's.
type Redis interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// Option configures a Client. A bad option does not panic: every call of the
// Client's limiters reports it, as ErrInvalidConfig, before Redis is touched.
type Option interface{ client(c *Client) error }

// LimiterOption configures a RateLimiter handle, or the limiters of many keys.
type LimiterOption interface{ limiter(l *RateLimiter) error }

// clientOption sets values of a Client, unless bad says what is wrong with them.
type clientOption struct {
	bad error
	set func(*Client)
}

func (o clientOption) client(c *Client) error {
	if o.bad == nil {
		o.set(c)
	}
	return o.bad
}

// invalid returns ErrInvalidConfig if a value is bad.
func invalid(bad bool, format string, args ...any) error {
	if !bad {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInvalidConfig, fmt.Sprintf(format, args...))
}

// chosen returns what options of a call choose.
func chosen[T any, F ~func(*T)](opts []F) (o T) {
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

type limiterOption func(*RateLimiter) error

func (o limiterOption) limiter(l *RateLimiter) error { return o(l) }

// SharedOption configures a Client, for all its handles, or one handle.
type SharedOption interface {
	Option
	LimiterOption
}

// sharedOption sets values of a policy, unless bad says what is wrong with them.
type sharedOption struct {
	bad error
	set func(*outage.Policy)
}

func (o sharedOption) client(c *Client) error {
	if o.bad == nil {
		o.set(c.policy)
	}
	return o.bad
}

func (o sharedOption) limiter(l *RateLimiter) error {
	if o.bad == nil {
		own := *l.policy
		o.set(&own)
		l.policy = &own
	}
	return o.bad
}

// WithClientID sets the id under which a Client keeps its own permits of PerClient limiters, as
// Redisson does for each instance. Clients with the same id share them. The default is a random UUID.
// It must not be the id of a Redisson instance: without a KeepAlive time the permits' keys expire an
// interval after this Client last used them, and what that instance has taken since would be lost.
func WithClientID(id string) Option {
	return clientOption{invalid(id == "", "WithClientID: the id is empty"), func(c *Client) { c.id = id }}
}

// WithClientName sets the name, such as "orders-7f9c", under which rrl show and package dashboard list
// this Client's permits. Several Clients may share a name. It has 1 to 128 bytes of printable
// UTF-8. Beside Redissons before 3.17.0 grants have no mark of their Client, so the name has no effect.
//
// The Client notes the name in the sorted set "rratelimiter:clients", once an hour of use. This happens in
// the background and never fails a call: [limit.NameNotNoted] reports errors. An ACL must allow that key.
func WithClientName(name string) Option {
	return clientOption{clients.CheckName(name), func(c *Client) { c.name = name }}
}

// WithNameMapper sets how a RateLimiter's name becomes its name in Redis, for example by a prefix, as Redisson's NameMapper
// does. The same name must always become the same. Keys of fixed windows, sliding logs and token buckets are not mapped.
func WithNameMapper(mapper func(name string) string) Option {
	return clientOption{invalid(mapper == nil, "WithNameMapper: the mapper is nil"), func(c *Client) { c.mapper = mapper }}
}

// WithCallTimeout bounds how long a call to Redis may go unanswered, all its attempts and the time before it is sent
// included. After that the call returns [ErrUnavailable]. The default is 3 seconds, the least 3 milliseconds.
func WithCallTimeout(d time.Duration) Option {
	return clientOption{invalid(d < 3*time.Millisecond, "WithCallTimeout: %v is below 3ms", d), func(c *Client) { c.timeout = d }}
}

// WithObserver sets the [limit.Observer] that receives what the Client's limiters do: decisions,
// round trips, callers that wait, leases, and rare events.
func WithObserver(observer limit.Observer) Option {
	return clientOption{invalid(observer == nil, "WithObserver: the observer is nil"), func(c *Client) { c.observer = observer }}
}

// WithLogger sets the log for rare events: see [limit.EventKind].
func WithLogger(log *slog.Logger) Option {
	return clientOption{invalid(log == nil, "WithLogger: the logger is nil"), func(c *Client) { c.log = log }}
}

// WithFailure sets what answers calls that ask for permits while Redis does not decide, in place of [ErrUnavailable]. After
// three undecided calls in a row no more calls are sent to that server: the policy answers at once, while one probe at a
// time checks whether the server is back. Such grants are not charged; see [RateLimiter.Release].
//
// A caller's deadline that ends before Redis has answered counts as undecided, and the caller gets its own error. A
// waiting caller that the local limiter refuses asks again when that has permits or Redis is back.
func WithFailure(f limit.Failure) SharedOption {
	return sharedOption{outage.CheckFailure(f), func(p *outage.Policy) { p.Failure = &f }}
}

// WithShadow makes limiters decide, charge and report, but refuse no call and let none wait, to see what a limit would do.
// What they would have refused, or could not decide, is granted and not charged; see [RateLimiter.Release]. Calls with
// mistakes, and calls whose context ends, still return errors.
func WithShadow() SharedOption {
	return sharedOption{nil, func(p *outage.Policy) { p.Shadow = true }}
}

// WithReplicas makes grants durable: a grant counts once n replicas have it, so no failover to one
// of these grants its permits again. If fewer than n confirm within wait, the call fails with
// [ErrNotReplicated] and its permits go back. Callers that share a round trip share its WAIT.
//
// A refusal that shares a round trip or a connection with a grant that is not confirmed takes up to wait too,
// and does not fail. What takes no permits, such as Settle, Release or SetRate, does not wait. A lease and Renew count as grants.
// ErrNotReplicated is no outage: WithFailure leaves it to the caller; with WithShadow the call passes.
//
// wait is a whole number of milliseconds, at least 1, at most a third of the call timeout, and below the
// ReadTimeout of the Redis client. A Redis without replicas fails each grant. On a cluster or a Ring, round
// trips use the clients of its nodes, so hooks of the whole do not see them. An ACL must allow the command wait.
func WithReplicas(n int, wait time.Duration) Option {
	bad := invalid(n < 1 || wait < time.Millisecond || wait%time.Millisecond != 0,
		"WithReplicas: %d replicas within %v: at least 1, and a whole number of milliseconds, at least 1", n, wait)
	return clientOption{bad, func(c *Client) { c.replicas, c.replicasWait = n, wait }}
}

// WithRedissonVersion names the oldest Redisson, from 3.12.0 to 4.7.0, that shares the Client's
// limiters. It decides what the Client writes; it reads what every version has written. The default
// is 3.35.0: if a program that shares a limiter uses an older Redisson, pass the oldest in use. A
// version above 4.7.0 counts as that; the observer and the log receive [limit.RedissonUntested].
//
// From 3.12.0 to 3.13.2 nothing stands for a grant: the value counts a fixed window, and an interval around its
// edge can see twice the rate. Release and KeepState are ErrUnsupported, and a request whose answer was lost is
// not repeated: ErrUnknownOutcome. docs/how-it-works.md says what is written for the others, and
// docs/compatibility.md which versions can share a limiter with each other.
func WithRedissonVersion(version string) Option {
	rules, bad := redisson.RulesFor(version)
	return clientOption{bad, func(c *Client) { c.rules = rules }}
}

// WithDefault sets the rate of a limiter that has none, in the round trip of the first request for
// permits. A limiter that has a rate keeps it, unless that is the default of a Client made before: the
// new default then replaces it and keeps permits in use; a change of type starts full. So a default that
// is changed in the code reaches limiters in use. A rate set by SetRate, UpdateRate, TrySetRate or
// Redisson stays, as does one of unknown origin, such as an earlier version's. If the rate in the code
// must win over those too, call SetRate with [KeepState] at the program's start.
//
// The handle's first request compares, then one a minute, and one after an answer that shows another
// rate, in the same script call. If programs disagree, the default of the Client made last holds, and
// within one Client the default of the handle that set up the limiter. The observer and the log receive
// [limit.RateReplaced] and [limit.RateDiffers] once. Calls that only read, such as Peek, change nothing.
func WithDefault(cfg Config) LimiterOption {
	return limiterOption(func(l *RateLimiter) error {
		d, err := newDefault(cfg, l.client.began)
		if err != nil {
			return fmt.Errorf("WithDefault: %w", err)
		}
		l.setDefault(d)
		return nil
	})
}

// newDefault returns what WithDefault gives limiters, of a rate that is of that time, as dateOf has it.
func newDefault(cfg Config, since string) (*engine.Default, error) {
	if err := cfg.validate(); err != nil {
		return engine.NoDefault, err
	}
	rate := cfg.rate()
	return &engine.Default{Rate: rate, Fallback: fmt.Sprintf("%d %d %d %d %s", append(engine.RateWords(rate), since)...)}, nil
}

func (l *RateLimiter) setDefault(d *engine.Default) {
	l.facts.Default = d
	if !d.Rate.PerClient {
		l.facts.SupposeOverall()
	}
}

// WithName sets the limiter's name for observers, and so in metrics: the limiters of all keys of [Client.Keyed] have
// this one in place of its prefix, which may be empty, those of package fixedwindow in place of "fixedwindow", and so on.
func WithName(name string) LimiterOption {
	return limiterOption(func(l *RateLimiter) error {
		l.facts.Observed = name
		return invalid(name == "", "WithName: the name is empty")
	})
}

// Lease bounds how many permits a handle takes ahead, and for how long: see [WithLease].
// The zero Lease, which follows demand, is right unless a program must take less.
type Lease struct {
	// Permits is the most that one lease holds, 1 to MaxPermits. 0 means MaxPermits: a lease
	// then holds what the handle is expected to use in two thirds of its life, but no more than
	// a 16th of the free permits or, if that is more, what the handle took lately in that time.
	Permits int64

	// Life is how long a lease lives, from when it was asked for. It must be shorter than the limiter's
	// interval, and is cut to half of it. 0 means a twentieth of the interval (50ms of a second), up to
	// three twentieths if many programs share the limiter, and up to half if answers are slow.
	Life time.Duration
}

// WithLease takes permits ahead: a request to Redis takes more than it needs, charged at once, and
// the handle answers further requests from these without a round trip, until the lease ends. Charges
// obey the limit exactly. Use obeys the rate in each span of the interval minus the lease's life.
// docs/reference.md says how much is taken, when it goes back, and what Take returns.
//
// It serves TryAcquire, Acquire, Take and TakeUpTo, and middleware through [Client.Keyed]. Other calls count the
// permits of a lease as in use. The handle notices changes by other programs when the lease ends. A limiter with
// a KeepAlive time may be deleted earlier by up to the lease's life. Keep the handle: a lease belongs to it.
//
// Beside Redissons before 3.35 calls return ErrUnsupported.
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

// WithExact leaves the members of the handle's grants as they are. Otherwise a Client merges members of limiters of more
// than 128 permits, so that the set in Redis stays small: their permits come back up to a 64th of the interval late.
func WithExact() LimiterOption {
	return limiterOption(func(l *RateLimiter) error {
		l.facts.Exact = true
		return nil
	})
}

// WithRefusalCache remembers refusals: the handle asks an exhausted limiter again at the time that the
// server named, or before, after a 64th of the wait: between a second and a minute, up to a quarter of it
// drawn. It applies to Take, TakeUpTo and TryAcquire with a timeout of 0 or less, and to Wait and WaitN whose
// deadline is earlier, if they ask for at least as many permits as were refused. Handles do not share what they remember.
//
// A refusal ends early if this Client gives back permits or changes the limiter, and when half of a KeepAlive
// time is over. With [WithLease] a refusal lasts up to 0.15 of the interval longer, so that programs that
// share a limiter come back one after another. docs/reference.md says what Take returns meanwhile.
func WithRefusalCache() LimiterOption {
	return limiterOption(func(l *RateLimiter) error {
		l.facts.Refusals = l.client.engine.NewRefusals(l.facts.Config)
		return nil
	})
}
