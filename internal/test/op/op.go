// Package op is the calls of a limiter as tests draw, make, record and judge them: an [Op] asks, an [Answer] is what came of it.
package op

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A Name is which call one is.
type Name string

// The calls.
const (
	Try         Name = "TryAcquire"
	Acquire     Name = "Acquire"
	Take        Name = "Take"
	UpTo        Name = "TakeUpTo"
	Peek        Name = "Peek"
	All         Name = "TryAcquireAll"
	Reserve     Name = "Reserve"
	Settle      Name = "Settle"
	Renew       Name = "Renew"
	Release     Name = "Release"
	Reset       Name = "Reset"
	Available   Name = "AvailablePermits"
	TrySet      Name = "TrySetRate"
	Set         Name = "SetRate"
	Update      Name = "UpdateRate"
	Config      Name = "Config"
	Expire      Name = "Expire"
	ExpireAt    Name = "ExpireAt"
	ClearExpire Name = "ClearExpire"
	TTL         Name = "TTL"
	Exists      Name = "Exists"
	Delete      Name = "Delete"
	Rename      Name = "Rename"
	Threshold   Name = "SetThreshold" // of a sliding log
)

// An Op is a call of a limiter.
type Op struct {
	Name    Name
	Permits int64               // asked for, at most, given back or reserved
	Timeout time.Duration       // for which it waits
	Config  rratelimiter.Config // that is set
	Keep    bool                // with KeepState
	Lasts   time.Duration       // with For
	Hold    time.Duration       // of what is reserved
	Used    int64               // by a Settle of the Permits that were reserved
	In      time.Duration       // of Expire, and from now on of ExpireAt
	To      string              // of Rename
}

// Takes reports whether the call asks for permits.
func (o Op) Takes() bool {
	switch o.Name {
	case Try, Acquire, Take, UpTo, All, Reserve:
		return true
	}
	return false
}

// Waits reports whether the call waits for permits.
func (o Op) Waits() bool { return o.Timeout > 0 || o.Name == Acquire }

// Title is the name in records: that of the call, with what makes it another one.
func (o Op) Title() string {
	title := string(o.Name)
	if o.Timeout > 0 && o.Name == Try {
		title += ", waiting"
	}
	if o.Keep {
		title += ", KeepState"
	}
	if o.Lasts > 0 {
		title += ", For"
	}
	return title
}

func (o Op) String() string {
	var args []string
	add := func(there bool, format string, arg any) {
		if there {
			args = append(args, fmt.Sprintf(format, arg))
		}
	}
	add(o.Permits != 0, "%d permits", o.Permits)
	add(o.Name == Settle, "%d used", o.Used)
	add(o.Config.Rate != 0, "rate %d", o.Config.Rate)
	add(o.Config.Rate != 0, "each %v", o.Config.Interval)
	add(o.Keep, "%s", "KeepState")
	add(o.Lasts != 0, "for %v", o.Lasts)
	add(o.Timeout != 0, "timeout %v", o.Timeout)
	add(o.Hold != 0, "held %v", o.Hold)
	return fmt.Sprintf("%s(%s)", o.Name, strings.Join(args, ", "))
}

// A Limiter is one that is asked by a key, as those of all kinds are.
type Limiter interface {
	limit.Limiter

	Peek(ctx context.Context, key string, n int64) (limit.Decision, error)
	TakeUpTo(ctx context.Context, key string, n int64) (int64, limit.Decision, error)
	Reset(ctx context.Context, key string) error
}

// OneKey is a RateLimiter as a limiter of one key, whatever that is.
type OneKey struct{ *rratelimiter.RateLimiter }

// Take is Take.
func (k OneKey) Take(ctx context.Context, _ string, n int64) (limit.Decision, error) {
	return k.RateLimiter.Take(ctx, n)
}

// Peek is Peek.
func (k OneKey) Peek(ctx context.Context, _ string, n int64) (limit.Decision, error) {
	return k.RateLimiter.Peek(ctx, n)
}

// TakeUpTo is TakeUpTo.
func (k OneKey) TakeUpTo(ctx context.Context, _ string, n int64) (int64, limit.Decision, error) {
	return k.RateLimiter.TakeUpTo(ctx, n)
}

// Reset is Reset.
func (k OneKey) Reset(ctx context.Context, _ string) error { return k.RateLimiter.Reset(ctx) }

// A Handle is what a call is made on.
type Handle struct {
	*rratelimiter.RateLimiter // nil if it is a limiter of another kind

	Keys     Limiter // nil: the RateLimiter
	Key      string
	Client   *rratelimiter.Client      // of TryAcquireAll, for
	Claims   []rratelimiter.Claim      // these
	Reserved *rratelimiter.Reservation // that Settle settles, and Renew renews
}

// On returns a RateLimiter as a Handle.
func On(l *rratelimiter.RateLimiter) Handle { return Handle{RateLimiter: l} }

// Do makes the call.
func (o Op) Do(ctx context.Context, h Handle) (a Answer) {
	if h.Keys == nil {
		h.Keys = OneKey{h.RateLimiter}
	}
	a.OK = true
	a.Err = o.ask(ctx, h, &a)
	a.Outcome, a.OK = OutcomeOf(a.Err), a.OK && a.Err == nil
	return a
}

func (o Op) ask(ctx context.Context, h Handle, a *Answer) (err error) {
	switch o.Name {
	case Try:
		a.OK, err = h.TryAcquire(ctx, o.Permits, o.Timeout)
	case Acquire:
		err = h.Acquire(ctx, o.Permits)
	case Take:
		return a.decide(h.Keys.Take(ctx, h.Key, o.Permits))
	case Peek:
		return a.decide(h.Keys.Peek(ctx, h.Key, o.Permits))
	case UpTo:
		var d limit.Decision
		a.Taken, d, err = h.Keys.TakeUpTo(ctx, h.Key, o.Permits)
		return a.decide(d, err)
	case All:
		a.OK, err = h.Client.TryAcquireAll(ctx, o.Timeout, h.Claims...)
	case Reserve:
		if a.Reserved, err = h.Reserve(ctx, o.Permits, o.Timeout, o.hold()...); err == nil {
			return a.decide(a.Reserved.Decision, nil)
		}
	case Settle:
		return h.Reserved.Settle(ctx, o.Used)
	case Renew:
		return h.Reserved.Renew(ctx)
	case Release:
		return h.Release(ctx, o.Permits)
	case Reset:
		return h.Keys.Reset(ctx, h.Key)
	case Available:
		a.Free, err = h.AvailablePermits(ctx)
	default:
		return o.change(ctx, h, a)
	}
	return err
}

// change is ask for the calls that are not about permits.
func (o Op) change(ctx context.Context, h Handle, a *Answer) (err error) {
	switch o.Name {
	case TrySet:
		a.OK, err = h.TrySetRate(ctx, o.Config)
	case Set:
		return h.SetRate(ctx, o.Config, o.how()...)
	case Update:
		a.OK, err = h.UpdateRate(ctx, o.Config, o.how()...)
	case Config:
		a.Set, err = h.Config(ctx)
	case Expire:
		a.OK, err = h.Expire(ctx, o.In)
	case ExpireAt:
		a.OK, err = h.ExpireAt(ctx, time.Now().Add(o.In))
	case ClearExpire:
		a.OK, err = h.ClearExpire(ctx)
	case TTL:
		a.Left, a.OK, err = h.TTL(ctx)
	case Exists:
		a.OK, err = h.Exists(ctx)
	case Delete:
		a.OK, err = h.Delete(ctx)
	case Rename:
		return h.Rename(ctx, o.To)
	case Threshold:
		log, ok := h.Keys.(interface {
			SetThreshold(ctx context.Context, key string, n int64) error
		})
		if !ok {
			return errors.New("no limiter with thresholds")
		}
		return log.SetThreshold(ctx, h.Key, o.Config.Rate)
	default:
		return fmt.Errorf("no call: %q", o.Name)
	}
	return err
}

func (o Op) hold() (opts []rratelimiter.ReserveOption) {
	if o.Hold > 0 {
		opts = append(opts, rratelimiter.Hold(o.Hold))
	}
	return opts
}

func (o Op) how() (opts []rratelimiter.RateOption) {
	if o.Keep {
		opts = append(opts, rratelimiter.KeepState())
	}
	if o.Lasts > 0 {
		opts = append(opts, rratelimiter.For(o.Lasts))
	}
	return opts
}

// An Outcome is how a call ended.
type Outcome string

// The outcomes.
const (
	Done        Outcome = "done"
	Unknown     Outcome = "unknown"     // ErrUnknownOutcome, the context's end among the causes or not
	Unavailable Outcome = "unavailable" // ErrUnavailable alone: nothing was done
	Gone        Outcome = "gone"        // the caller's context ended, with no word of the result
	Closed      Outcome = "closed"
	Killed      Outcome = "killed"  // its process was, before the answer came
	Missing     Outcome = "missing" // there is no limiter
	Exceeds     Outcome = "exceeds" // more permits than the rate
	Failed      Outcome = "failed"  // anything else
)

// OutcomeOf returns the outcome of a call that returned err.
func OutcomeOf(err error) Outcome {
	for _, known := range []struct {
		err     error
		outcome Outcome
	}{
		{nil, Done},
		{rratelimiter.ErrUnknownOutcome, Unknown}, // beside others
		{rratelimiter.ErrUnavailable, Unavailable},
		{context.Canceled, Gone},
		{context.DeadlineExceeded, Gone},
		{rratelimiter.ErrClosed, Closed},
		{rratelimiter.ErrNotInitialized, Missing},
		{rratelimiter.ErrPermitsExceedRate, Exceeds},
	} {
		if errors.Is(err, known.err) {
			return known.outcome
		}
	}
	return Failed
}

// An Answer is what came of a call.
type Answer struct {
	Outcome Outcome
	OK      bool  // permits were granted, a rate was set, a key was there ...
	Taken   int64 // by TakeUpTo
	Free    int64 // of Take and its like, and of AvailablePermits
	Limit   int64 // of Take and its like; 0 if its figures were not noted
	Wait    time.Duration
	Reset   time.Duration
	Set     rratelimiter.Config // of Config
	Left    time.Duration       // of TTL

	Reserved *rratelimiter.Reservation
	Err      error
}

// Did reports whether the call was answered, and with yes.
func (a *Answer) Did() bool { return a.Outcome == Done && a.OK }

// decide notes a decision.
func (a *Answer) decide(d limit.Decision, err error) error {
	a.OK, a.Free, a.Limit, a.Wait, a.Reset = d.Granted, d.Remaining, d.Limit, d.RetryAfter, d.ResetAfter
	return err
}
