package rratelimiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/recent"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Keyed returns a limiter for any number of keys, such as users. The RateLimiter of a key is called
// prefix+key and gets the rate of cfg at first use, as with [WithDefault]: if cfg changes in the code,
// keys in use follow, except those whose rate SetRate has set. If cfg has no KeepAlive time, the Interval
// is used: a limiter unused for that long is full, and is deleted.
//
// The options apply to every key: [WithLease], [WithRefusalCache], [WithFailure], [WithShadow] and [WithName].
// With [WithDefault] calls return ErrInvalidConfig.
//
// No other limiter's name may begin with prefix, and no other Keyed's prefix may begin with it: the log reports
// [limit.PrefixesMeet], and [limit.RateDiffers] for one prefix with two rates. For a key whose limiter would
// share Redis keys with another limiter, as "{ann}:value" does with "{ann}", calls return ErrInvalidConfig: if
// clients choose the keys, escape braces and colons. docs/reference.md has more on prefixes.
func (c *Client) Keyed(prefix string, cfg Config, opts ...LimiterOption) *KeyedLimiter {
	return c.keyed(&KeyedLimiter{prefix: prefix, cfg: kept(cfg)}, opts)
}

// KeyedFunc is [Client.Keyed] with a rate for each key, such as that of a user's plan. It asks config at every
// call, so config must be quick, as a map or a cache is, and safe for concurrent use. Another answer than the
// last reaches the key with its next call, and permits in use stay. If two programs have different answers, the
// one that learnt its answer later wins; an equal answer costs nothing. A key whose rate SetRate has set keeps
// it. If config returns a bad Config, calls for that key return ErrInvalidConfig.
//
// Behind middleware key is what its key functions have returned, such as "google:bob", several joined by ":", whatever the
// name in Redis is. There config is asked once for each request.
func (c *Client) KeyedFunc(prefix string, config func(key string) Config, opts ...LimiterOption) *KeyedLimiter {
	return c.keyed(&KeyedLimiter{prefix: prefix, config: config}, opts)
}

func (c *Client) keyed(k *KeyedLimiter, opts []LimiterOption) *KeyedLimiter {
	k.client, k.handles = c, recent.New[string, *RateLimiter](maxHandles)
	k.ofModule = door.New[outage.Keyed](k, (*ofKeys)(k))
	l := &RateLimiter{client: c, policy: c.policy}
	l.facts.Default = &engine.Default{Rate: k.cfg.rate()}
	err := l.apply(opts)
	rated := invalid(l.facts.Fallback != "", "WithDefault is not for Keyed, whose Config says what the rate is")
	k.like, k.name, k.err = l, cmp.Or(l.facts.Observed, k.prefix), k.fail(errors.Join(err, rated))
	if k.config == nil {
		if l.facts.Default, err = newDefault(k.cfg, c.began); err != nil {
			k.bad = fmt.Errorf("WithDefault: %w", err)
		}
	}
	return k
}

// kept returns a Config whose keys do not stay for ever.
func kept(cfg Config) Config {
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = cfg.Interval
	}
	return cfg
}

// maxHandles is how many bytes the handles of a KeyedLimiter take at most. They are kept for the next call, since they
// know what the last answer reported.
const maxHandles = 128 << 20

type ofModule = door.Door[outage.Keyed] // an alias, so that the field has no exported name

// KeyedLimiter is a RateLimiter for each key: see [Client.Keyed]. It is a [limit.Limiter], a
// [limit.Returner], a [limit.Reserver] and a [limit.Windowed], safe for concurrent use.
type KeyedLimiter struct {
	ofModule

	client *Client
	prefix string
	cfg    Config
	config func(key string) Config // in place of cfg; may be nil
	like   *RateLimiter            // has what the options and cfg give the handle of every key
	name   string                  // of all of them for observers
	err    error                   // of the options
	bad    error                   // of cfg

	begun   atomic.Bool // the Client knows the prefix
	handles *recent.Map[string, *RateLimiter]
}

// fail adds to an error which Keyed it is of.
func (k *KeyedLimiter) fail(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("Keyed %q: %w", k.prefix, err)
}

// Window returns the interval of Keyed's Config, whatever the current rate of a key is, and 0 for KeyedFunc.
func (k *KeyedLimiter) Window() time.Duration { return k.cfg.Interval }

// Err returns the error that every key's calls return if Keyed's Config or an option of the Client is
// bad, and nil otherwise. It does no I/O.
func (k *KeyedLimiter) Err() error {
	err := errors.Join(k.client.err, k.err)
	if k.config == nil {
		err = errors.Join(err, k.fail(k.cfg.validate()))
	}
	return err
}

// Take is [RateLimiter.Take].
func (k *KeyedLimiter) Take(ctx context.Context, key string, permits int64) (limit.Decision, error) {
	return k.Limiter(key).Take(ctx, permits)
}

// Peek is [RateLimiter.Peek].
func (k *KeyedLimiter) Peek(ctx context.Context, key string, permits int64) (limit.Decision, error) {
	return k.Limiter(key).Peek(ctx, permits)
}

// TakeUpTo is [RateLimiter.TakeUpTo].
func (k *KeyedLimiter) TakeUpTo(ctx context.Context, key string, permits int64) (int64, limit.Decision, error) {
	return k.Limiter(key).TakeUpTo(ctx, permits)
}

// TakeReturnable is Take with a grant that can be undone: see [limit.Returner].
func (k *KeyedLimiter) TakeReturnable(ctx context.Context, key string, permits int64) (limit.Decision, func(context.Context) error, error) {
	var a decide.Answer
	err := k.Limiter(key).decide(ctx, &decide.Ask{Call: "TakeReturnable", Permits: permits, Figures: true, Undo: true}, &a)
	return a.Decision, a.Undo, err
}

// TryAcquire is [RateLimiter.TryAcquire].
func (k *KeyedLimiter) TryAcquire(ctx context.Context, key string, permits int64, timeout time.Duration) (bool, error) {
	return k.Limiter(key).TryAcquire(ctx, permits, timeout)
}

// Acquire is [RateLimiter.Acquire].
func (k *KeyedLimiter) Acquire(ctx context.Context, key string, permits int64) error {
	return k.Limiter(key).Acquire(ctx, permits)
}

// Wait is [RateLimiter.Wait].
func (k *KeyedLimiter) Wait(ctx context.Context, key string) error { return k.Limiter(key).Wait(ctx) }

// WaitN is [RateLimiter.WaitN].
func (k *KeyedLimiter) WaitN(ctx context.Context, key string, permits int64) error {
	return k.Limiter(key).WaitN(ctx, permits)
}

// Reserve is [RateLimiter.Reserve].
func (k *KeyedLimiter) Reserve(ctx context.Context, key string, permits int64, timeout time.Duration, opts ...ReserveOption) (*Reservation, error) {
	return k.Limiter(key).Reserve(ctx, permits, timeout, opts...)
}

// TakeReserved is Reserve without waiting: see [limit.Reserver].
func (k *KeyedLimiter) TakeReserved(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context, int64) error, error) {
	l, q := k.Limiter(key), decide.Ask{Call: "TakeReserved", Permits: n, Figures: true, Reserve: true}
	var a decide.Answer
	err := l.decide(ctx, &q, &a)
	return a.Decision, l.policy.Settler((*asker)(l), q, a), err
}

// Release is [RateLimiter.Release].
func (k *KeyedLimiter) Release(ctx context.Context, key string, permits int64) error {
	return k.Limiter(key).Release(ctx, permits)
}

// Reset is [RateLimiter.Reset].
func (k *KeyedLimiter) Reset(ctx context.Context, key string) error { return k.Limiter(key).Reset(ctx) }

// Limiter returns the RateLimiter of key, for methods KeyedLimiter lacks. If the key is invalid, its
// methods return the error.
func (k *KeyedLimiter) Limiter(key string) *RateLimiter { return k.limiter(key, key) }

// limiter is Limiter for a key that the program made of another text, by which it knows the rate.
func (k *KeyedLimiter) limiter(key, made string) *RateLimiter {
	cfg := k.cfg
	if k.config != nil {
		cfg = kept(k.config(made))
	}
	return k.handleOf(key, cfg, k.name)
}

// handleOf returns the RateLimiter of a key with that rate. A new handle has the name for observers.
func (k *KeyedLimiter) handleOf(key string, cfg Config, name string) *RateLimiter {
	current := func(l *RateLimiter) bool { return k.config == nil || l.facts.Rate == cfg.rate() }
	if l, ok := k.handles.Get(key); ok && current(l) {
		return l
	}
	first := !k.begun.Load() && k.begun.CompareAndSwap(false, true)
	if first {
		k.note("")
	}
	l := k.newHandle(key, cfg)
	l.facts.Observed, l.facts.Kept = name, !first // a program may make a KeyedLimiter for each call
	if l.facts.Err != nil {
		return l
	}
	return k.handles.Add(l.Name()[len(k.prefix):], l, l.size(), current)
}

// newHandle makes a handle. It takes no lock, and calls the program's NameMapper.
func (k *KeyedLimiter) newHandle(key string, cfg Config) *RateLimiter {
	l, like, err := k.client.handle(k.prefix+key), &k.like.facts, k.bad
	l.policy, l.ofKey, l.facts.Exact = k.like.policy, true, like.Exact
	if like.Lease != nil {
		l.facts.Lease = &lease.Planner{Most: like.Lease.Most, Want: like.Lease.Want}
	}
	if like.Refusals != nil {
		l.facts.Refusals = k.client.engine.NewRefusals(l.facts.Config)
	}
	d := like.Default
	if k.config != nil {
		learnt := time.Now()
		if d, err = newDefault(cfg, dateOf(learnt)); err == nil {
			d.Learnt = learnt
		}
	}
	l.setDefault(d)
	if k.config != nil {
		err = errors.Join(err, l.checkLease())
	}
	l.facts.Err = errors.Join(cmp.Or(k.err, k.fail(k.checkKey(key, l.facts.Config))), l.facts.Err, err)
	return l
}

// size returns about how many bytes a handle takes, with its keys and what it remembers.
func (l *RateLimiter) size() int {
	bytes := 500 + 4*len(l.facts.Name)
	if l.facts.Lease != nil {
		bytes += 200
	}
	if l.facts.Refusals != nil {
		bytes += 300
	}
	return bytes
}

// ofKeys is a KeyedLimiter in the role of outage.Keyed.
type ofKeys KeyedLimiter

func (k *ofKeys) Policy() outage.Policy { return *k.like.policy }

func (k *ofKeys) Suffix() string { return "" }

// At returns the RateLimiter of a key of a KeyedFunc with that rate, whatever the function says, and what to ask about it.
// Observers know it by name.
func (k *ofKeys) At(key string, cfg Config, name string) (*RateLimiter, outage.Asker) {
	l := (*KeyedLimiter)(k).handleOf(key, kept(cfg), name)
	return l, (*asker)(l)
}

func (k *ofKeys) Holds() bool { return true }

func (k *ofKeys) Asker(q decide.Ask) outage.Asker {
	return (*asker)((*KeyedLimiter)(k).limiter(q.Key, q.Made))
}

// Begins notes what the keys of middleware begin with.
func (k *ofKeys) Begins(prefix string) {
	k.begun.Store(true)
	(*KeyedLimiter)(k).note(prefix)
}

func (k *KeyedLimiter) note(prefix string) {
	k.client.prefixes.Note(k.client.policy.Observer, k.prefix+prefix, k.cfg.rate())
}

// checkKey returns an error if a key, whose limiter has that name in Redis, can't be used beside the others.
func (k *KeyedLimiter) checkKey(key, name string) error {
	other := redisson.Other(k.client.mapper(k.prefix), name)
	switch {
	case key == "":
		return fmt.Errorf("%w: the key is empty", ErrInvalidConfig)
	case other != "":
		return fmt.Errorf("%w: the key %q: the limiter %q would share Redis keys with %q; "+
			"escape braces and colons in keys that others choose, as url.QueryEscape does", ErrInvalidConfig, key, name, other)
	}
	return nil
}
