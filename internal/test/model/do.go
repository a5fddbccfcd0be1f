package model

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	calls "github.com/rratelimiter/rratelimiter/internal/test/op"
)

const ms = time.Millisecond

// names are the operations that are one call each.
var names = map[string]calls.Name{
	"tryAcquire": calls.Try, "withDefault": calls.Try, "acquireAll": calls.All, "take": calls.Take, "reserve": calls.Reserve, "peek": calls.Peek,
	"takeUpTo": calls.UpTo, "reset": calls.Reset, "release": calls.Release, "availablePermits": calls.Available,
	"trySetRate": calls.TrySet, "setRate": calls.Set, "setRateArgs": calls.Set, "updateRate": calls.Update, "getConfig": calls.Config,
	"expire": calls.Expire, "expireAt": calls.ExpireAt, "clearExpire": calls.ClearExpire, "ttl": calls.TTL, "exists": calls.Exists,
	"delete": calls.Delete, "rename": calls.Rename,
}

// Do has a Client's handle do an operation, now being base, and returns what it says. Handles must be WithExact, since the model
// merges nothing.
func Do(ctx context.Context, client *rratelimiter.Client, l *rratelimiter.RateLimiter, op Op, base int64) Answer {
	if op.Do == "settle" {
		return op.says(calls.Answer{Err: op.Settle(ctx, l)})
	}
	return op.says(op.call(ctx, client, l, base))
}

// call makes the call that the operation is.
func (op Op) call(ctx context.Context, client *rratelimiter.Client, l *rratelimiter.RateLimiter, base int64) calls.Answer {
	call := calls.Op{
		Name: names[op.Do], Permits: op.Permits, Keep: op.Keep, Hold: time.Duration(op.Hold) * ms,
		In: time.Duration(op.TTL) * ms,
	}
	if op.Do == "expireAt" {
		call.In = time.Until(time.UnixMilli(base + op.At))
	}
	opts := []rratelimiter.LimiterOption{rratelimiter.WithExact()}
	if op.Rate != nil {
		call.Config = op.Rate.Public()
		opts = append(opts, rratelimiter.WithDefault(call.Config))
	}
	on := calls.Handle{RateLimiter: l, Client: client}
	switch op.Do {
	case "withDefault":
		on.RateLimiter = client.RateLimiter(l.Name(), opts...)
	case "rename":
		call.To = op.To[0]
	case "acquireAll":
		for i, name := range append([]string{l.Name()}, op.To...) {
			on.Claims = append(on.Claims, client.RateLimiter(name, opts...).Claim(op.PermitsOf(i)))
		}
	}
	return call.Do(ctx, on)
}

// says returns what the answer of the call says.
func (op Op) says(a calls.Answer) Answer {
	switch {
	case op.Do == "ttl" && errors.Is(a.Err, rratelimiter.ErrNotInitialized):
		return SayTTL(-2)
	case a.Err != nil:
		return Say(problem(a.Err))
	case op.Do == "ttl" && !a.OK:
		return SayTTL(-1)
	}
	said := []any{a.OK, a.Limit, a.Free}
	switch op.Do {
	case "takeUpTo":
		said = append([]any{a.Taken}, said...)
	case "take", "reserve", "peek":
	case "reset", "release", "settle", "setRate", "setRateArgs", "rename":
		return Say("done")
	case "availablePermits":
		return Say(a.Free)
	case "ttl":
		return SayTTL(a.Left.Milliseconds())
	case "getConfig":
		return Say(fmt.Sprint(a.Set.Type, a.Set.Rate, a.Set.Interval.Milliseconds(), a.Set.KeepAlive.Milliseconds()))
	default:
		return Say(a.OK)
	}
	return Say(said...).With(a.Wait.Milliseconds(), a.Reset.Milliseconds())
}

// Settle settles a row as if it were a reservation.
func (op Op) Settle(ctx context.Context, l *rratelimiter.RateLimiter) error {
	behind, _ := door.Behind[engine.Behind](l)
	member := redisson.WithPermits([]byte(op.Row.Member), op.Permits)
	at := time.Now().Add(-time.Duration(op.age()) * ms)
	var a decide.Answer
	hold := engine.Hold{Early: time.Duration(op.Early) * ms, At: at.UnixMilli()}
	behind.Engine.Reserved(&a, behind.Limiter, member, op.Permits, hold, at, at, false)
	return a.Settle(ctx, op.Used, func(error) {})
}

// age is how long ago the reserved row was granted.
func (op Op) age() int64 { return max(0, -op.Row.At-op.Early) }

// SayTTL returns the answer of a time to live in ms: -1 if there is none, -2 if there is no limiter.
func SayTTL(ms int64) Answer {
	if ms < 0 {
		return Say(ms)
	}
	return Say("ms").With(ms)
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
	return "error: " + err.Error()
}
