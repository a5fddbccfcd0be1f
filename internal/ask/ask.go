// Package ask is what HTTP and gRPC middleware have in common: their options, and how they ask limiters
// for requests: for a bounded time, even if the limiter ignores its context, and giving back grants
// that come too late. While a limiter fails, only probes ask Redis; its policy answers what the limiter
// does not know from memory.
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
	GiveBack func(context.Context) error // nil if nothing can be given back
	Settle   settle                      // nil if nothing can be settled
	Err      error
	Panicked any // the value of the limiter's panic, for the caller to panic with
}

// settle sets the cost of a grant.
type settle func(ctx context.Context, actual int64) error

// An attempt is one question to a limiter.
type attempt struct {
	limiter limit.Limiter
	key     string
	n       int64
	settled bool          // settle the grant later, if the limiter can
	timeout time.Duration // for giving back what came too late: see [Afterwards]
}

// Call is a call of a limiter in a goroutine of its own, which bounds its time if it ignores its context.
type Call struct {
	done    chan Outcome  // has room for it
	claimed atomic.Bool   // by the goroutine that sends the outcome or gives up on it
	counts  bool          // for the breaker, once it is awaited
	most    time.Duration // that the caller waits, 0 for no bound
}

// begin asks the limiter for n permits of the key, which is escaped if the limiter has second keys
// ([keypart.EscapeSuffix]). It calls heard, if that is not nil, with the outcome and how long it took.
// Await the outcome with the same ctx.
func (a attempt) begin(ctx context.Context, heard func(Outcome, time.Duration)) *Call {
	a.key = escaped(a.limiter, a.key)
	c := &Call{done: make(chan Outcome, 1)}
	go func() {
		start := time.Now()
		o := a.take(ctx)
		if heard != nil {
			heard(o, time.Since(start))
		}
		if c.claimed.CompareAndSwap(false, true) {
			c.done <- o
			return
		}
		if o.GiveBack != nil {
			giving, cancel := Afterwards(ctx, a.timeout)
			defer cancel()
			// No caller is left for an error. It only leaves the limit tighter.
			_ = Safely(giving, o.GiveBack)
		}
	}()
	return c
}

// escaped returns the key with which to ask a limiter.
func escaped(limiter limit.Limiter, key string) string {
	if s, ok := limiter.(limit.Suffixed); ok {
		return keypart.EscapeSuffix(key, s.KeySuffix())
	}
	return key
}

// ended returns a call with that outcome.
func ended(o Outcome) *Call {
	c := &Call{done: make(chan Outcome, 1)}
	c.done <- o
	return c
}

func (a attempt) take(ctx context.Context) (o Outcome) {
	defer func() {
		if v := recover(); v != nil {
			o = Outcome{Panicked: v}
		}
	}()
	if a.settled {
		if o = a.reserve(ctx); !errors.Is(o.Err, limit.ErrUnsupported) {
			return o
		}
		// It is limited nevertheless.
		cannot := o.Err
		o = Outcome{Settle: func(context.Context, int64) error { return cannot }}
	}
	if returner, ok := a.limiter.(limit.Returner); ok {
		o.Decision, o.GiveBack, o.Err = returner.TakeReturnable(ctx, a.key, a.n)
	} else {
		o.Decision, o.Err = a.limiter.Take(ctx, a.key, a.n)
	}
	return o
}

// reserve takes permits whose cost is settled later. The error is limit.ErrUnsupported if the limiter
// can't do that.
func (a attempt) reserve(ctx context.Context) (o Outcome) {
	reserver, ok := a.limiter.(limit.Reserver)
	if !ok {
		o.Err = fmt.Errorf("%w: the limiter is not a limit.Reserver; limiters of Client.Keyed are", limit.ErrUnsupported)
		return o
	}
	var settle settle
	if o.Decision, settle, o.Err = reserver.TakeReserved(ctx, a.key, a.n); o.Err == nil && o.Decision.Granted {
		o.Settle = settle
		o.GiveBack = func(ctx context.Context) error { return settle(ctx, 0) }
	}
	return o
}

// await returns the outcome, or ctx's end if that comes first. A later grant is given back.
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

// afterwards bounds work that has no other bound.
const afterwards = time.Second

// Bound returns ctx with a timeout, 0 for none.
func Bound(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}

// Afterwards returns a context for work that must happen even if the request's context has ended. It
// lasts for timeout, or for a second if that is 0.
func Afterwards(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		timeout = afterwards
	}
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}

// Safely turns a panic of giveBack into an error: on a goroutine without a caller it would end the
// process.
func Safely(ctx context.Context, giveBack func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return giveBack(ctx)
}
