package rratelimiter

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/rratelimiter/rratelimiter/internal/clients"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Client makes limiters whose state is in one Redis, as fixedwindow.New, slidinglog.New and tokenbucket.New do on it. It is
// safe for concurrent use. Create one for each Redis and share it: callers of one Client share round trips and wait in one
// line.
type Client struct {
	maker

	rdb      Redis
	id       string
	name     string // "" if it is not written to Redis
	began    string // the date of its defaults: see dateOf
	rules    redisson.Rules
	mapper   func(string) string
	timeout  time.Duration
	observer limit.Observer
	log      *slog.Logger

	replicas     int // that a grant waits for
	replicasWait time.Duration
	err          error // of the options

	policy   *outage.Policy
	engine   *engine.Engine
	prefixes observe.Prefixes
}

// New returns a Client whose limiters are in rdb. It does no I/O. Close does not close rdb.
func New(rdb Redis, opts ...Option) *Client {
	c := &Client{
		rdb:     rdb,
		id:      uuid.NewString(),
		rules:   redisson.NewestRules,
		mapper:  func(name string) string { return name },
		timeout: script.DefaultTimeout,
		policy:  &outage.Policy{Guard: outage.NewGuard()},
	}
	c.err = script.CheckClient(rdb)
	for _, opt := range opts {
		if opt != nil {
			c.err = errors.Join(c.err, opt.client(c))
		}
	}
	c.err = errors.Join(c.err, invalid(c.replicasWait > c.timeout/3,
		"WithReplicas: waiting for %v is more than a third of the call timeout, %v: see WithCallTimeout", c.replicasWait, c.timeout))
	observer, ids := observe.New(c.observer, c.log), redisson.NewIdentities(c.rules.Layout)
	if untested := c.rules.Untested(); untested != nil {
		observer.Happened(limit.Event{Kind: limit.RedissonUntested, Err: untested})
	}
	c.engine = engine.New(rdb, c.timeout, c.rules, ids, observer)
	c.engine.AwaitReplicas(c.replicas, c.replicasWait)
	if c.name != "" {
		c.engine.NoteName(clients.Client{Name: c.name, Mark: hex.EncodeToString(ids.Mark()), ID: c.id})
	}
	c.began = dateOf(time.Now())
	c.policy.Observer = observer
	c.maker = door.New(c, c.unmapped)
	return c
}

// maker makes limiters of keys for other packages. It is an alias, so that the field has no exported name.
type maker = door.Door[func(name string, opts []LimiterOption) engine.Behind]

// unmapped returns what is behind a limiter of that name for observers, which Redis does not know.
func (c *Client) unmapped(name string, opts []LimiterOption) engine.Behind {
	l := &RateLimiter{client: c, policy: c.policy}
	l.facts.Observed, l.facts.Default = name, engine.NoDefault
	l.facts.Err = errors.Join(c.err, l.apply(opts))
	return engine.Behind{Engine: c.engine, Limiter: &l.facts, Policy: l.policy}
}

// Err returns the error that every call of the Client's limiters returns if an option is bad, and nil
// otherwise. It does no I/O; call it when a program starts.
func (c *Client) Err() error { return c.err }

// program is this process, and begun counts its defaults: their order is known whatever clocks say.
var (
	program = strconv.FormatUint(uint64(rand.Uint32()), 36)
	begun   atomic.Int64
)

// dateOf is when a default was made, and which of the program's it is, as scripts compare it.
func dateOf(now time.Time) string {
	return strconv.FormatInt(now.UnixMicro(), 10) + " " + program + "." + strconv.FormatInt(begun.Add(1), 10)
}

// RateLimiter returns a handle of the limiter called name. It does no I/O; handles of one name share one
// line of waiting callers.
func (c *Client) RateLimiter(name string, opts ...LimiterOption) *RateLimiter {
	l := c.handle(name)
	l.facts.Observed, l.facts.Default = name, engine.NoDefault
	l.facts.Err = errors.Join(l.facts.Err, l.apply(opts))
	return l
}

// handle returns a handle without a policy of its own.
func (c *Client) handle(name string) *RateLimiter {
	l := &RateLimiter{client: c, policy: c.policy}
	l.facts.Name, l.facts.Config, l.facts.ClientID = name, c.mapper(name), c.id
	l.facts.Err = errors.Join(c.err, invalid(name == "" || l.facts.Config == "", "the limiter's name is empty"))
	l.behind = door.New(l, engine.Behind{Engine: c.engine, Limiter: &l.facts})
	return l
}

// Close ends the Client and all limiters made on it. Waiting callers get ErrClosed. Requests under way get their answer, and
// permits that are being given back or settled arrive. Close returns when all that is done, or with ctx.Err() before. Later
// calls fail with ErrClosed. The Redis client stays open.
func (c *Client) Close(ctx context.Context) error {
	c.policy.Guard.Close()
	return c.engine.Close(ctx)
}

// RateLimiter is a handle of a limiter in Redis, which other programs may share. Make one with
// [Client.RateLimiter]. It is safe for concurrent use and needs no closing.
type RateLimiter struct {
	behind

	client *Client
	facts  engine.Limiter

	policy *outage.Policy // the Client's, unless an option says otherwise
	known  rate
	ofKey  bool // of a KeyedLimiter
}

type behind = door.Door[engine.Behind] // an alias, so that the field has no exported name

func (l *RateLimiter) apply(opts []LimiterOption) (err error) {
	for _, opt := range opts {
		if opt != nil {
			err = errors.Join(err, opt.limiter(l))
		}
	}
	return errors.Join(err, l.checkLease())
}

// checkLease returns an error if a lease would last for an interval.
func (l *RateLimiter) checkLease() error {
	lease, interval := l.facts.Lease, l.facts.Rate.Interval
	if lease == nil || interval <= 0 || lease.Want < interval {
		return nil
	}
	return fmt.Errorf("%w: WithLease: the life %v is not shorter than the interval %v", ErrInvalidConfig, lease.Want, interval)
}

// Name returns the limiter's name, as it was given to Client.RateLimiter.
func (l *RateLimiter) Name() string { return l.facts.Name }

// Err returns the error that every call returns if the name, or an option of the handle or its Client, is
// bad, and nil otherwise. It does no I/O.
func (l *RateLimiter) Err() error { return l.fail("RateLimiter", l.facts.Err) }

// change runs a script that changes the limiter, once, and reports whether it changed anything. If err says what is wrong
// with the call, it only returns that.
func (l *RateLimiter) change(ctx context.Context, op string, err error, s *lua.Script, args script.Arguments) (bool, error) {
	n, err := l.changed(ctx, err, s, args)
	return n > 0, l.fail(op, err)
}

// changed is change with the script's number, and without what fail adds.
func (l *RateLimiter) changed(ctx context.Context, err error, s *lua.Script, args script.Arguments) (int64, error) {
	if err != nil {
		return 0, err
	}
	reply, err := l.client.engine.Change(ctx, &l.facts, script.Call{Script: s, Args: args})
	n, _ := reply.(int64)
	return n, err
}

// fail adds to an error which limiter and which call it is of.
func (l *RateLimiter) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return &engine.Error{Op: op, Name: l.facts.Name, Err: err}
}
