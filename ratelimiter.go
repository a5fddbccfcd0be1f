package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/meet"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// RateLimiter grants at most as many permits in any span of its interval as its
// rate says, to all programs together that share it, Redisson's included. It is
// a handle: all state is in Redis. Make one with [Client.RateLimiter]; it is
// safe for use by several goroutines and needs no closing.
type RateLimiter struct {
	client   *Client
	name     string
	keys     *script.Keys
	fallback string // configuration for a limiter that has none, or ""
	err      error  // of the options or the name

	defaultInterval time.Duration // of fallback
	ahead           *lessor       // nil without leases
	refused         *refusals     // nil where refusals are not remembered

	audit    atomic.Int64                // when leaked permits are next looked for, Unix ns
	interval atomic.Int64                // as the last audit found it, ns
	ownless  atomic.Int64                // the Client's last grant when a Release found none of its members
	shared   atomic.Pointer[script.Keys] // all that a shared limiter needs; nil while it is not known to be one
}

// Name returns the limiter's name, as it was given to Client.RateLimiter.
func (l *RateLimiter) Name() string { return l.name }

// TryAcquire takes permits if they are free, or become free within timeout, and
// tells whether it did. With a timeout of 0 or less it asks once. With more it
// waits in line: callers of one Client are served first come first served, but
// one that has asked for an interval in vain no longer holds up those behind.
//
// When ctx ends, TryAcquire returns ctx.Err() at once; what it is granted
// nevertheless is given back. Other errors: ErrInvalidPermits,
// ErrPermitsExceedRate, ErrNotInitialized, ErrCorrupt, ErrClosed, and
// ErrUnknownOutcome where Redis gave no answer, repeats included; permits that
// it may have taken come back after an interval.
func (l *RateLimiter) TryAcquire(ctx context.Context, permits int64, timeout time.Duration) (bool, error) {
	if l.takeAhead(ctx, permits) {
		return true, nil
	}
	if timeout <= 0 && l.refuse(ctx, permits) {
		return false, nil
	}
	r := newRequest(l, permits)
	if timeout > 0 {
		r.waits = true
		r.deadline = time.Now().Add(timeout)
	}
	a, err := l.acquire(ctx, r)
	if timeout <= 0 && err == nil && !a.decision.Granted {
		l.confirm(ctx)
	}
	return a.decision.Granted, l.fail("TryAcquire", err)
}

// Acquire takes permits, and waits for them as long as it must. It is
// TryAcquire without a timeout; ctx can end it.
func (l *RateLimiter) Acquire(ctx context.Context, permits int64) error {
	if l.takeAhead(ctx, permits) {
		return nil
	}
	r := newRequest(l, permits)
	r.waits = true
	_, err := l.acquire(ctx, r)
	return l.fail("Acquire", err)
}

// Take takes permits if they are free at once, and answers with the figures
// that a caller may want to pass on. Its errors are those of TryAcquire.
func (l *RateLimiter) Take(ctx context.Context, permits int64) (limit.Decision, error) {
	d, _, err := l.take(ctx, permits, false)
	return d, l.fail("Take", err)
}

// take is Take, where a grant comes with what undoes it if it is to be undoable.
func (l *RateLimiter) take(ctx context.Context, permits int64, undoable bool) (limit.Decision, func(context.Context) error, error) {
	if d, ok := l.refusal(ctx, permits); ok {
		return d, nil, nil
	}
	start, before := time.Now(), l.refused.count()
	r := newRequest(l, permits)
	r.figures, r.undoable = true, undoable
	a, err := l.acquire(ctx, r)
	if err != nil || a.decision.Granted {
		return a.decision, a.undo, err
	}
	defer l.confirm(ctx)
	if !a.atLeast {
		return a.decision, nil, nil
	}
	token := ""
	for range maxWaitPages {
		asked := time.Now()
		reply, err := l.read(ctx, lua.Wait, permits, token)
		if errors.Is(err, ErrNotInitialized) && l.fallback != "" {
			break // it has gone since, and the next request makes it anew
		}
		if err != nil {
			return a.decision, nil, err
		}
		next, _, more := again(reply)
		if !more {
			wait, err := integer(reply)
			if err == nil {
				a.decision.RetryAfter = meet.Millis(wait)
				d := a.decision
				d.ResetAfter -= asked.Sub(start)
				l.refused.note(permits, asked, before, d)
			}
			return a.decision, nil, err
		}
		token = next
	}
	return a.decision, nil, nil
}

// maxWaitPages bounds how far Take looks for its RetryAfter, in pages of 256
// members. Beyond, and where a busy limiter's oldest members leave faster than
// they are read, RetryAfter is early.
const maxWaitPages = 64

func (l *RateLimiter) acquire(ctx context.Context, r *request) (answer, error) {
	if l.err != nil {
		return answer{}, l.err
	}
	if r.permits < 1 || r.permits > MaxPermits {
		return answer{}, fmt.Errorf("%w: %d is not between 1 and %d", ErrInvalidPermits, r.permits, int64(MaxPermits))
	}
	if err := ctx.Err(); err != nil {
		return answer{}, err
	}
	q, err := l.client.enter(l)
	if err != nil {
		return answer{}, err
	}
	defer l.client.leave(q)
	r.fallback = l.fallback
	return q.acquire(ctx, r)
}

// auditDue tells whether it is time to look for leaked permits, which costs the
// server more than a plain refusal: once an interval is enough.
func (l *RateLimiter) auditDue(now time.Time) bool { return now.UnixNano() >= l.audit.Load() }

func (l *RateLimiter) auditDone(now time.Time, interval time.Duration) {
	l.audit.Store(now.Add(interval).UnixNano())
	l.interval.Store(int64(interval))
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
	if l.client.rules.windowed() {
		return l.fail(op, l.client.rules.unsupported("Release"))
	}
	q, err := l.client.enter(l)
	if err != nil {
		return l.fail(op, err)
	}
	defer l.client.leave(q)
	if permits == 0 {
		return nil
	}
	defer l.changing(ctx)()
	// While a batch is in doubt, its member must stay as it was written.
	var failed error
	err = q.exclusive(ctx, func() { failed = l.release(context.WithoutCancel(ctx), permits) })
	if err == nil {
		err = failed
	}
	l.client.wake(l.keys.Names()[0])
	return l.fail(op, err)
}

// AvailablePermits returns how many permits are free now.
func (l *RateLimiter) AvailablePermits(ctx context.Context) (int64, error) {
	const op = "AvailablePermits"
	reply, err := untilDone(func(token string) (any, error) {
		return l.read(ctx, lua.Available, token, l.client.rules.letters())
	})
	if err != nil {
		return 0, l.fail(op, err)
	}
	free, err := integer(reply)
	return max(0, free), l.fail(op, err)
}
