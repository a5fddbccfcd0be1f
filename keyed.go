package rratelimiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/outage"
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
// Behind middleware key is the whole key with its parts escaped, such as "http:google%3Abob", and of a part above
// 128 bytes it has only a hash. There config is asked once for each request.
func (c *Client) KeyedFunc(prefix string, config func(key string) Config, opts ...LimiterOption) *KeyedLimiter {
	return c.keyed(&KeyedLimiter{prefix: prefix, config: config}, opts)
}

func (c *Client) keyed(k *KeyedLimiter, opts []LimiterOption) *KeyedLimiter {
	k.client, k.handles = c, make(map[string]*RateLimiter)
	k.ofModule = door.New[outage.Keyed](k, (*ofKeys)(k))
	l := &RateLimiter{client: c, policy: c.policy} // tries the options
	l.facts.Rate = k.cfg.rate()
	err := l.apply(opts)
	rated := invalid(l.facts.Fallback != "", "WithDefault is not for Keyed, whose Config says what the rate is")
	k.policy, k.name = l.policy, cmp.Or(l.facts.Observed, k.prefix)
	if k.err = k.fail(errors.Join(err, rated)); k.err == nil {
		k.opts = opts
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

// A KeyedLimiter's handles are kept for the next call, since they know what the last answer reported:
// at most maxHandles, of keys that are used again and again, and twice newHandles of those used once.
const maxHandles, newHandles = 25_000, 5_000

type ofModule = door.Door[outage.Keyed] // an alias, so that the field has no exported name

// KeyedLimiter is a RateLimiter for each key: see [Client.Keyed]. It is a [limit.Limiter], a
// [limit.Returner], a [limit.Reserver] and a [limit.Windowed], safe for concurrent use.
type KeyedLimiter struct {
	ofModule

	client *Client
	prefix string
	cfg    Config
	config func(key string) Config // in place of cfg; may be nil
	opts   []LimiterOption         // of the limiter of every key
	name   string                  // of all of them for observers
	policy *outage.Policy          // of them
	err    error                   // of the options

	mu           sync.Mutex
	begun        bool                    // the Client knows the prefix
	handles, old map[string]*RateLimiter // old: the generation before
	made         int                     // how many of handles are not from old
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
func (k *KeyedLimiter) Limiter(key string) *RateLimiter {
	cfg := k.cfg
	if k.config != nil {
		cfg = kept(k.config(key))
	}
	l := k.handle(key, cfg, nil)
	if l == nil {
		if l = k.newHandle(key, cfg); l.facts.Err == nil { // without the lock: it calls the program's NameMapper
			l = k.handle(key, cfg, l)
		}
	}
	return l
}

// handle returns the handle of a key if there is one with that rate; if not, it keeps and returns made, which may be nil.
func (k *KeyedLimiter) handle(key string, cfg Config, made *RateLimiter) *RateLimiter {
	k.mu.Lock()
	defer k.mu.Unlock()
	l, used := k.handles[key]
	if !used {
		l = k.old[key]
	}
	current := l != nil && (k.config == nil || l.facts.Rate == cfg.rate())
	if used && current {
		return l
	}
	if !k.begun {
		k.noteLocked("")
	}
	if !current {
		if l = made; l == nil {
			return nil
		}
		k.made++
	}
	// Handles that are not used while newHandles are made, or maxHandles/2 used, are forgotten.
	if k.made >= newHandles || len(k.handles) >= maxHandles/2 {
		k.old, k.handles, k.made = k.handles, make(map[string]*RateLimiter), 0
	}
	k.handles[key] = l
	return l
}

func (k *KeyedLimiter) newHandle(key string, cfg Config) *RateLimiter {
	byDefault := WithDefault(cfg)
	if k.config != nil {
		byDefault = limiterOption(func(l *RateLimiter) error {
			l.facts.Learnt = time.Now()
			return l.setDefault(cfg, dateOf(l.facts.Learnt))
		})
	}
	l := k.client.RateLimiter(k.prefix+key, append([]LimiterOption{byDefault}, k.opts...)...)
	l.facts.Observed, l.ofKey = k.name, true
	l.facts.Err = errors.Join(cmp.Or(k.err, k.fail(k.checkKey(key, l.facts.Config))), l.facts.Err)
	return l
}

// ofKeys is a KeyedLimiter in the role of outage.Keyed.
type ofKeys KeyedLimiter

func (k *ofKeys) Policy() outage.Policy { return *k.policy }

func (k *ofKeys) Suffix() string { return "" }

func (k *ofKeys) Asker(key string) outage.Asker { return (*asker)((*KeyedLimiter)(k).Limiter(key)) }

// Begins notes what the keys of middleware begin with.
func (k *ofKeys) Begins(prefix string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	(*KeyedLimiter)(k).noteLocked(prefix)
}

func (k *KeyedLimiter) noteLocked(prefix string) {
	k.begun = true
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
