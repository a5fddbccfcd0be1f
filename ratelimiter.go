package rratelimiter

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// RateLimiter grants at most as many permits in any span of its interval as its
// rate says, to all programs together that share it, Redisson's included. It is
// a handle: all state is in Redis. Make one with [Client.RateLimiter]; it is
// safe for use by several goroutines and needs no closing.
type RateLimiter struct {
	client *Client
	facts  engine.Limiter
	err    error // of the options or the name

	defaultInterval time.Duration // of WithDefault
}

func (l *RateLimiter) config() string { return l.facts.Keys.Names()[0] }

// Name returns the limiter's name, as it was given to Client.RateLimiter.
func (l *RateLimiter) Name() string { return l.facts.Name }

// TryAcquire takes permits if they are free, or become free within timeout, and
// tells whether it did. With a timeout of 0 or less it asks once. With more it
// waits in line once it was refused: those of one Client are served first come
// first served, but one that has asked for an interval in vain no longer holds up
// those behind. A question that is under way when the timeout ends is waited for
// 100 ms more at most. false without an error is always something that Redis said.
//
// When ctx ends, TryAcquire returns ctx.Err() at once; what it is granted
// nevertheless is given back. Only where the Redis client has
// ContextTimeoutEnabled, and the call goes by itself, a ctx that is cancelled is
// noticed with the answer. Other errors: ErrInvalidPermits,
// ErrPermitsExceedRate, ErrNotInitialized, ErrCorrupt, ErrClosed, and
// ErrUnavailable where Redis did not decide in time; where it may have taken
// permits, which come back after an interval, ErrUnknownOutcome too.
func (l *RateLimiter) TryAcquire(ctx context.Context, permits int64, timeout time.Duration) (bool, error) {
	if granted, known := l.client.engine.AtHand(ctx, &l.facts, permits, timeout > 0); known {
		return granted, nil
	}
	d, err := l.acquire(ctx, engine.Wish{Permits: permits, Waits: timeout > 0, Timeout: timeout})
	return d.Granted, l.fail("TryAcquire", err)
}

// Acquire takes permits, and waits for them as long as it must. It is
// TryAcquire without a timeout; ctx can end it. It does not wait for a Redis that
// gives no answer: see [WithCallTimeout].
func (l *RateLimiter) Acquire(ctx context.Context, permits int64) error {
	if granted, _ := l.client.engine.AtHand(ctx, &l.facts, permits, true); granted {
		return nil
	}
	_, err := l.acquire(ctx, engine.Wish{Permits: permits, Waits: true})
	return l.fail("Acquire", err)
}

// Take takes permits if they are free at once, and answers with the figures
// that a caller may want to pass on. Its errors are those of TryAcquire.
func (l *RateLimiter) Take(ctx context.Context, permits int64) (limit.Decision, error) {
	d, err := l.acquire(ctx, engine.Wish{Permits: permits, Figures: true})
	return d, l.fail("Take", err)
}

func (l *RateLimiter) acquire(ctx context.Context, w engine.Wish) (limit.Decision, error) {
	if l.err != nil {
		return limit.Decision{}, l.err
	}
	if w.Permits < 1 || w.Permits > MaxPermits {
		return limit.Decision{}, fmt.Errorf("%w: %d is not between 1 and %d", ErrInvalidPermits, w.Permits, int64(MaxPermits))
	}
	if err := ctx.Err(); err != nil {
		return limit.Decision{}, err
	}
	return l.client.engine.Acquire(ctx, &l.facts, w)
}

// Release gives permits back before their interval is over: those that this
// Client took last, however many others have taken since, then those that others
// took last. What is not in use is not given back. 0 permits do nothing; fewer
// are ErrInvalidPermits. Callers of this Client that wait for permits ask at once.
// Release is not repeated once it may have run: ErrUnknownOutcome. Where Redissons
// before 3.17.0 share the limiter, grants bear no mark of their Client and the
// newest go back, whoever's they are; before 3.13.3 it is ErrUnsupported.
func (l *RateLimiter) Release(ctx context.Context, permits int64) error {
	const op = "Release"
	if l.err != nil {
		return l.fail(op, l.err)
	}
	if permits < 0 || permits > MaxRate {
		return l.fail(op, fmt.Errorf("%w: %d is not between 0 and %d", ErrInvalidPermits, permits, int64(MaxRate)))
	}
	if err := ctx.Err(); err != nil {
		return l.fail(op, err)
	}
	if l.client.rules.Windowed() {
		return l.fail(op, l.client.rules.Unsupported("Release"))
	}
	if permits == 0 {
		return l.fail(op, l.client.engine.Closed())
	}
	return l.fail(op, l.client.engine.Release(ctx, &l.facts, permits))
}

// AvailablePermits returns how many permits are free now.
func (l *RateLimiter) AvailablePermits(ctx context.Context) (int64, error) {
	const op = "AvailablePermits"
	reply, err := l.read(ctx, lua.Available, script.ArgumentsFunc(func(all []any, a script.Attempt) []any {
		return append(all, a.Token, l.client.rules.Letters())
	}))
	if err != nil {
		return 0, l.fail(op, err)
	}
	free, err := engine.Integer(reply)
	return max(0, free), l.fail(op, err)
}
