package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// MaxLimiters is how many limiters TryAcquireAll takes at most.
const MaxLimiters = 32

// TryAcquireAll takes permits from every one of the limiters or from none, and
// tells whether it did: so many from each, for example from one of 10 a second,
// one of 1000 an hour and one of the user. It is one decision, made by one
// script: no limiter is charged where another refuses.
//
// The limiters are handles of this Client, up to MaxLimiters, each once. Their
// names share a hash tag, as in "{shop}:second" and "{shop}:hour", so that a
// cluster keeps them on one server; else it is ErrUnsupported, whatever the
// server is.
//
// With a timeout of 0 or less it asks once. With more it asks again when all
// that refused said that they could grant, in time to keep those with a KeepAlive
// time alive, and at once where this Client releases permits of one of the
// limiters or changes it; it does not stand in their lines. All else is as with
// [RateLimiter.TryAcquire]. An error that one limiter is the cause of says which;
// nothing is taken from any then. Where Redissons before 3.13.3 share the limiters
// it is ErrUnsupported.
func (c *Client) TryAcquireAll(ctx context.Context, permits int64, timeout time.Duration, limiters ...*RateLimiter) (bool, error) {
	ok, err := c.tryAcquireAll(ctx, permits, timeout, limiters)
	if err == nil {
		return ok, nil
	}
	const op = "TryAcquireAll"
	if of, known := errors.AsType[*engine.Error](err); known {
		return false, &engine.Error{Op: op, Name: of.Name, Err: of.Err}
	}
	return false, fmt.Errorf("rratelimiter: %s: %w", op, err)
}

// tryAcquireAll is TryAcquireAll, but for the name of the call in its errors.
func (c *Client) tryAcquireAll(ctx context.Context, permits int64, timeout time.Duration, limiters []*RateLimiter) (bool, error) {
	if err := c.checkAll(limiters); err != nil {
		return false, err
	}
	if permits < 1 || permits > MaxPermits {
		return false, fmt.Errorf("%w: %d is not between 1 and %d", ErrInvalidPermits, permits, int64(MaxPermits))
	}
	if c.rules.Windowed() {
		return false, c.rules.Unsupported("TryAcquireAll")
	}
	if len(limiters) == 1 {
		return limiters[0].TryAcquire(ctx, permits, timeout)
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	facts := make([]*engine.Limiter, len(limiters))
	for i, l := range limiters {
		facts[i] = &l.facts
	}
	return c.engine.AcquireAll(ctx, facts, permits, timeout)
}

// checkAll tells why limiters can't go together in one decision.
func (c *Client) checkAll(limiters []*RateLimiter) error {
	if c.err != nil {
		return c.err
	}
	if len(limiters) == 0 || len(limiters) > MaxLimiters {
		return fmt.Errorf("%w: %d limiters are given, not between 1 and %d", ErrInvalidConfig, len(limiters), MaxLimiters)
	}
	owners := make(map[string]*RateLimiter, 5*len(limiters))
	for i, l := range limiters {
		switch {
		case l == nil:
			return fmt.Errorf("%w: limiter %d of %d is nil", ErrInvalidConfig, i+1, len(limiters))
		case l.client != c:
			return l.blame(fmt.Errorf("%w: the limiter is a handle of another Client", ErrInvalidConfig))
		case l.err != nil:
			return l.blame(l.err)
		}
		for _, key := range l.facts.Keys.Names() {
			other := owners[key]
			switch {
			case other == nil:
				owners[key] = l
			case other.config() == l.config():
				return l.blame(fmt.Errorf("%w: the limiter is given twice; ask it for the sum of the permits", ErrInvalidConfig))
			case other != l:
				return l.blame(fmt.Errorf("%w: %q is a key of the limiter %q too", ErrInvalidConfig, key, other.facts.Name))
			}
		}
	}
	if len(limiters) == 1 {
		return nil // the server tells
	}
	first := limiters[0].config()
	for _, l := range limiters {
		for _, key := range l.facts.Keys.Names() {
			if script.HashTag(key) == script.HashTag(first) {
				continue
			}
			if l == limiters[0] {
				return l.blame(fmt.Errorf("%w: the keys %q fall in different slots of a cluster: "+
					"name the limiter with one hash tag, as in \"{shop}:hour\"", ErrUnsupported, l.facts.Keys.Names()))
			}
			return l.blame(fmt.Errorf("%w: %q and %q have no hash tag in common, so that a cluster would keep them apart: "+
				"begin the names of all with the same word in braces, as in \"{shop}:second\" and \"{shop}:hour\"",
				ErrUnsupported, first, l.config()))
		}
	}
	return nil
}

// blame says which limiter an error of several speaks of.
func (l *RateLimiter) blame(err error) error { return l.fail("", err) }
