package model

import (
	"context"
	"errors"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
)

// Do has a Client's handle do an operation, now being base, and returns what it says. Handles must be WithExact, since the model
// merges nothing.
func Do(ctx context.Context, client *rratelimiter.Client, l *rratelimiter.RateLimiter, o Op, base int64) Answer {
	if o.Do == "settle" {
		return Says("done", o.Settle(ctx, l))
	}
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	call := op.Op{
		Name: calls[o.Do], Permits: o.Permits, Keep: o.Keep, Hold: ms(o.Hold), In: ms(o.TTL), At: time.UnixMilli(base + o.At),
	}
	opts := []rratelimiter.LimiterOption{rratelimiter.WithExact()}
	if o.Rate != nil {
		call.Config = o.Rate.Public()
		opts = append(opts, rratelimiter.WithDefault(call.Config))
	}
	h := op.Handle{RateLimiter: l, Client: client}
	switch o.Do {
	case "withDefault":
		h.RateLimiter = client.RateLimiter(l.Name(), opts...)
	case "rename":
		call.To = o.To[0]
	case "wait":
		call.Timeout = ms(o.TTL)
		fallthrough
	case "acquireAll":
		if len(o.To) > 0 || o.Do == "acquireAll" {
			call.Name = op.All
		}
		for i, name := range append([]string{l.Name()}, o.To...) {
			h.Claims = append(h.Claims, client.RateLimiter(name, opts...).Claim(o.PermitsOf(i)))
		}
	}
	a := call.Do(ctx, h)
	if o.Do == "wait" && a.Outcome == op.Done && !a.OK {
		// A waiting caller asks at times that are drawn. To know when limiters were last asked, and so
		// how long they live, one that was refused asks once more.
		call.Timeout = 0
		call.Do(ctx, h)
	}
	return answer(call, a)
}

// calls are those that operations are.
var calls = map[string]op.Name{
	"tryAcquire": op.Try, "withDefault": op.Try, "wait": op.Try, "acquireAll": op.All, "take": op.Take, "reserve": op.Reserve,
	"peek": op.Peek, "takeUpTo": op.UpTo, "reset": op.Reset, "release": op.Release, "availablePermits": op.Available,
	"trySetRate": op.TrySet, "setRate": op.Set, "setRateArgs": op.Set, "updateRate": op.Update, "getConfig": op.Config,
	"expire": op.Expire, "expireAt": op.ExpireAt, "clearExpire": op.ClearExpire, "ttl": op.TTL, "exists": op.Exists,
	"delete": op.Delete, "rename": op.Rename,
}

// answer returns what a call says.
func answer(call op.Op, a op.Answer) Answer {
	if call.Name == op.TTL {
		left, err := TTL(a.Left, a.OK, a.Err)
		return SayTTL(left, problem(err))
	}
	if a.Err != nil {
		return Say(problem(a.Err))
	}
	figures := []int64{a.Wait.Milliseconds(), a.Reset.Milliseconds()}
	switch call.Name {
	case op.Take, op.Reserve, op.Peek:
		return Say(a.OK, a.Limit, a.Free).With(figures...)
	case op.UpTo:
		return Say(a.Taken, a.OK, a.Limit, a.Free).With(figures...)
	case op.Available:
		return Say(a.Free)
	case op.Config:
		return Say(a.Set.Type, a.Set.Rate, a.Set.Interval.Milliseconds(), a.Set.KeepAlive.Milliseconds())
	case op.Reset, op.Release, op.Set, op.Rename:
		return Say("done")
	}
	return Say(a.OK)
}

// Settle settles a row as if it were a reservation.
func (op Op) Settle(ctx context.Context, l *rratelimiter.RateLimiter) error {
	behind, _ := door.Behind[engine.Behind](l)
	member, ms := redisson.WithPermits([]byte(op.Row.Member), op.Permits), time.Millisecond
	at := time.Now().Add(-time.Duration(op.age()) * ms)
	var a decide.Answer
	hold := engine.Hold{Early: time.Duration(op.Early) * ms, At: at.UnixMilli()}
	behind.Engine.Reserved(&a, behind.Limiter, member, op.Permits, hold, at, at, false)
	return a.Settle(ctx, op.Used, func(error) {})
}

// age is how long ago the reserved row was granted.
func (op Op) age() int64 { return max(0, -op.Row.At-op.Early) }

// TTL is a handle's TTL as Java tells it: -1 if the limiter does not expire, -2 if there
// is none.
func TTL(left time.Duration, expires bool, err error) (time.Duration, error) {
	switch {
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		return -2, nil
	case err == nil && !expires:
		return -1, nil
	}
	return left, err
}

// SayTTL returns the answer of a time to live, or of what there is in place of one.
func SayTTL(left time.Duration, problem string) Answer {
	switch {
	case problem != "":
		return Say(problem)
	case left < 0:
		return Say(int64(left))
	}
	return Say("ms").With(left.Milliseconds())
}

// Says returns the answer of a call.
func Says(value any, err error) Answer {
	if err != nil {
		return Say(problem(err))
	}
	return Say(value)
}

func problem(err error) string {
	for _, known := range []struct {
		err  error
		text string
	}{
		{rratelimiter.ErrInvalidPermits, Illegal},
		{rratelimiter.ErrNotInitialized, NotInitialized},
		{rratelimiter.ErrPermitsExceedRate, ExceedsRate},
		{rratelimiter.ErrUnsupported, Unsupported},
	} {
		if errors.Is(err, known.err) {
			return known.text
		}
	}
	if err != nil {
		return "error: " + err.Error()
	}
	return ""
}
