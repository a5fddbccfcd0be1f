package rratelimiter

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Keyed returns a limiter of any number of keys, such as users: the RateLimiter
// of a key is called prefix+key, and has the rate of cfg unless it was given
// another one. It is set up at first use. Unless cfg says otherwise its KeepAlive
// time is its Interval: a limiter that nobody has asked for that long is full, and
// goes. Give one a rate of its own by SetRate with the KeepAlive time that it is
// to have.
//
// Whoever chooses keys chooses names; prefix keeps them apart from others, as long
// as no other limiter's name begins with it: see to it that no Keyed's prefix
// continues another's. A key whose limiter would share Redis keys with another
// one's is ErrInvalidConfig, such as "{ann}:value" beside "{ann}", or "{ann}"
// beside "ann" where prefix is empty: escape braces and colons in keys that others
// choose.
func (c *Client) Keyed(prefix string, cfg Config) limit.Limiter {
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = cfg.Interval
	}
	return &keyed{client: c, prefix: prefix, mapped: c.mapper(prefix), cfg: cfg, handles: make(map[string]*RateLimiter)}
}

// maxHandles is how many of a Keyed's handles are kept for the next call: they
// know what the last one learned.
const maxHandles = 10_000

type keyed struct {
	client *Client
	prefix string
	mapped string // prefix, as the mapper maps it
	cfg    Config

	mu           sync.Mutex
	handles, old map[string]*RateLimiter // old: those before the last that were in use
}

// Window returns the interval.
func (k *keyed) Window() time.Duration { return k.cfg.Interval }

// Take takes n permits of key, as [RateLimiter.Take] does.
func (k *keyed) Take(ctx context.Context, key string, n int64) (limit.Decision, error) {
	l, err := k.handle(key)
	if err != nil {
		return limit.Decision{}, err
	}
	return l.Take(ctx, n)
}

// TakeReturnable is Take with a grant that can be undone: see [limit.Returner].
func (k *keyed) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	const op = "TakeReturnable"
	l, err := k.handle(key)
	if err != nil {
		return limit.Decision{}, nil, err
	}
	var undo func(context.Context) error
	d, err := l.acquire(ctx, op, engine.Wish{Permits: n, Figures: true, Undo: &undo})
	if undo == nil {
		return d, nil, err
	}
	return d, func(ctx context.Context) error { return l.fail(op, undo(ctx)) }, nil
}

// handle returns the handle of a key. Those that are not asked for while as many
// others are, are forgotten.
func (k *keyed) handle(key string) (*RateLimiter, error) {
	if key == "" {
		return nil, fmt.Errorf("rratelimiter: Keyed %q: %w: the key is empty", k.prefix, ErrInvalidConfig)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.handles[key]
	if l != nil {
		return l, nil
	}
	if l = k.old[key]; l == nil {
		l = k.client.RateLimiter(k.prefix+key, WithDefault(k.cfg))
		l.facts.Observed = k.prefix
		if err := k.check(key, l.keys.Config); err != nil {
			return nil, err
		}
	}
	if len(k.handles) >= maxHandles/2 {
		k.old, k.handles = k.handles, make(map[string]*RateLimiter)
	}
	k.handles[key] = l
	return l, nil
}

// check tells why a key, whose limiter has that name in Redis, can't be had beside
// the others.
func (k *keyed) check(key, name string) error {
	common := 0 // of what all names begin with, as far as can be told
	for common < min(len(k.mapped), len(name)) && k.mapped[common] == name[common] {
		common++
	}
	other := redisson.Other(name[:common], name)
	if other == "" {
		return nil
	}
	return fmt.Errorf("rratelimiter: Keyed %q: %w: the key %q: the limiter %q would share Redis keys with %q; "+
		"escape braces and colons in keys that others choose, as url.QueryEscape does", k.prefix, ErrInvalidConfig, key, name, other)
}
