// Package ask is what HTTP and gRPC middleware have in common: their options, and
// how they ask limiters on behalf of requests: for a bounded time, whatever the
// limiter does with its context, without keeping what was granted too late. While a
// limiter fails it is not asked but for probes, and the policy for that answers.
package ask

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/keypart"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Outcome is how a call of a limiter ended.
type Outcome struct {
	Decision limit.Decision
	GiveBack func(context.Context) error // nil where nothing can be given back
	Err      error
	Panicked any // what the limiter panicked with, for the caller to go on with
}

// Call is a call of a limiter in a goroutine of its own: that is what bounds one
// which does not heed its context.
type Call struct {
	done    chan Outcome  // has room for it
	claimed atomic.Bool   // by the one who sends the outcome, or who gave up on it
	counts  bool          // for the breaker, once it is awaited
	most    time.Duration // that the caller waits, 0 for no bound
}

// begin asks limiter for n permits of key, which is guarded if the limiter has
// second keys ([keypart.Guard]), and tells heard, if there is one, what it said and how
// long that took. The outcome is to be awaited with the same ctx. Giving back what came too
// late is bounded by timeout, as by [Afterwards].
func begin(ctx context.Context, limiter limit.Limiter, key string, n int64, timeout time.Duration, heard func(Outcome, time.Duration)) *Call {
	key = guarded(limiter, key)
	c := &Call{done: make(chan Outcome, 1)}
	go func() {
		start := time.Now()
		o := take(ctx, limiter, key, n)
		if heard != nil {
			heard(o, time.Since(start))
		}
		if c.claimed.CompareAndSwap(false, true) {
			c.done <- o
			return
		}
		if o.GiveBack != nil {
			giving, cancel := Afterwards(ctx, timeout)
			defer cancel()
			// There is no one left to tell a failure: it leaves the limit tighter,
			// not wider.
			_ = Safely(giving, o.GiveBack)
		}
	}()
	return c
}

// guarded returns the key under which a limiter is asked.
func guarded(limiter limit.Limiter, key string) string {
	if s, ok := limiter.(limit.Suffixed); ok {
		return keypart.Guard(key, s.KeySuffix())
	}
	return key
}

// ended returns a call with that outcome.
func ended(o Outcome) *Call {
	c := &Call{done: make(chan Outcome, 1)}
	c.done <- o
	return c
}

func take(ctx context.Context, limiter limit.Limiter, key string, n int64) (o Outcome) {
	defer func() {
		if v := recover(); v != nil {
			o = Outcome{Panicked: v}
		}
	}()
	if returner, ok := limiter.(limit.Returner); ok {
		o.Decision, o.GiveBack, o.Err = returner.TakeReturnable(ctx, key, n)
	} else {
		o.Decision, o.Err = limiter.Take(ctx, key, n)
	}
	return o
}

// await returns the outcome, or ctx's end if that comes first. What is granted
// after that is given back.
func (c *Call) await(ctx context.Context) Outcome {
	if c.most > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.most, errProbing)
		defer cancel()
	}
	select {
	case o := <-c.done:
		return o
	case <-ctx.Done():
		if !c.claimed.CompareAndSwap(false, true) {
			return <-c.done
		}
		if cause := context.Cause(ctx); errors.Is(cause, errProbing) {
			return Outcome{Err: cause}
		}
		return Outcome{Err: fmt.Errorf("no decision in time: %w", ctx.Err())}
	}
}

// afterwards bounds what has no other bound.
const afterwards = time.Second

// Bound returns ctx with a timeout, 0 for none.
func Bound(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}

// Afterwards returns a context for what must happen even if that of the request
// has ended. It lasts for timeout, and for a second if that is 0.
func Afterwards(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		timeout = afterwards
	}
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}

// Safely makes a panic of giveBack an error: in a goroutine without a caller it
// would end the process.
func Safely(ctx context.Context, giveBack func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return giveBack(ctx)
}
