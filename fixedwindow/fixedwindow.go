// Package fixedwindow limits by a count that is reset when its window ends.
//
// The state of a key is one string in Redis: how many permits the window has granted. It expires when the window
// ends, and the next grant begins another window. The fixed windows and counters that many services keep in
// Redis with a script of a few lines work the same way; both can share the key with this package while they run.
//
// A window lasts for a time, or with a [Calendar] for a day or a month.
//
// Around the end of a window up to twice the limit can pass within one window's length: all of the
// old window's permits at its end, and all of the new one's at its beginning. If that matters, use
// package slidinglog or tokenbucket.
package fixedwindow

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/keyed"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// MaxLimit is the highest limit that can be counted exactly: Lua numbers are doubles.
const MaxLimit = 1<<53 - 1

// Config configures a Limiter.
type Config struct {
	// Limit is how many permits a window grants: 1 to MaxLimit.
	Limit int64

	// Window is the length of a window, a whole number of milliseconds, at least 1. A window begins
	// with the first grant after the previous window has ended.
	Window time.Duration

	// Calendar, in place of Window, makes windows end at a date, such as each day's midnight in Berlin. The
	// server's clock decides which window it is.
	Calendar Calendar
}

func (c Config) validate() error {
	switch {
	case c.Limit < 1 || c.Limit > MaxLimit:
		return fmt.Errorf("%w: limit %d is not between 1 and %d", limit.ErrInvalidConfig, c.Limit, int64(MaxLimit))
	case c.Calendar == Calendar{} && (c.Window < time.Millisecond || c.Window%time.Millisecond != 0):
		return fmt.Errorf("%w: window %v is not a whole number of milliseconds, at least 1", limit.ErrInvalidConfig, c.Window)
	case c.Calendar != Calendar{} && c.Window != 0:
		return fmt.Errorf("%w: window %v and a calendar are given: choose one", limit.ErrInvalidConfig, c.Window)
	case c.Calendar != Calendar{} && c.Calendar.loc == nil:
		return fmt.Errorf("%w: the calendar's time zone is nil", limit.ErrInvalidConfig)
	}
	return nil
}

type ofModule = door.Door[outage.Keyed] // an alias, so that the field has no exported name

// Limiter limits any number of keys by one rule. It is a [limit.Returner], a [limit.Reserver] and a
// [limit.Windowed], safe for concurrent use; callers that ask for one key at the same time share a call.
type Limiter struct {
	ofModule

	cfg   Config
	clock clock // of the Calendar
	table *keyed.Queues
}

// New returns a Limiter on a Client, which has the observer, the policy for outages and so on, and whose Close ends it. It
// does no I/O. The options WithName, WithFailure and WithShadow of the Client's package apply to it. If cfg or an option is
// bad, each call returns the error.
func New(client *rratelimiter.Client, cfg Config, opts ...rratelimiter.LimiterOption) *Limiter {
	l := &Limiter{cfg: cfg, clock: clock{calendar: cfg.Calendar}}
	l.table = keyed.New(client, keyed.Rule{
		Package: "fixedwindow", Err: cfg.validate(), Most: MaxLimit, Limit: cfg.Limit,
		Local: l.local, Ask: l.ask,
	}, opts)
	l.ofModule = door.New[outage.Keyed](l, l.table)
	return l
}

// Window returns the window's length; with a Calendar that of the current window.
func (l *Limiter) Window() time.Duration {
	if !l.calendar() {
		return l.cfg.Window
	}
	begin, end := l.clock.window()
	return end.Sub(begin)
}

// calendar reports whether the windows are those of a calendar.
func (l *Limiter) calendar() bool { return l.cfg.Calendar.loc != nil }

// local returns the rule for a local limiter.
func (l *Limiter) local() local.Rule {
	r := local.Rule{Permits: l.cfg.Limit, Window: l.Window()}
	if l.calendar() {
		_, r.Until = l.clock.window()
	}
	return r
}

// Err returns the error that every call returns if the Config or an option is bad, and nil otherwise.
// It does no I/O.
func (l *Limiter) Err() error { return l.table.Err() }

// Take takes n permits of key if the window has them left. Limit is the
// configured one; RetryAfter and ResetAfter are the time until the window ends.
//
// When ctx ends, Take returns ctx.Err() at once, and any later grant is given back. Errors:
// limit.ErrInvalidConfig for an empty key, limit.ErrInvalidPermits for n below 1, limit.ErrPermitsExceedRate
// for n above the limit, limit.ErrCorrupt if the key holds something else, limit.ErrClosed after the Client's
// Close, limit.ErrNotReplicated, and limit.ErrUnavailable if Redis did not decide in time. If the answer was lost,
// the error is limit.ErrUnknownOutcome too: a count can't show whether the permits were taken, so Take does not ask
// again.
func (l *Limiter) Take(ctx context.Context, key string, n int64) (limit.Decision, error) {
	a, err := l.table.Take(ctx, decide.Ask{Call: "Take", Key: key, Permits: n})
	return a.Decision, err
}

// Peek returns what Take would return now, without taking anything; with n 0 it answers how many permits are
// free, as Remaining. It changes nothing in Redis, not even times to live, and a later Take may still be
// refused. Errors are those of Take, except limit.ErrUnknownOutcome.
func (l *Limiter) Peek(ctx context.Context, key string, n int64) (limit.Decision, error) {
	return l.table.Peek(ctx, "Peek", key, n)
}

// TakeUpTo takes as many permits of key as are free, at most n, and returns how many. If none is free
// it returns 0 and a Decision that is not Granted, with the RetryAfter of one permit. Errors are those
// of Take, except limit.ErrPermitsExceedRate.
func (l *Limiter) TakeUpTo(ctx context.Context, key string, n int64) (int64, limit.Decision, error) {
	a, err := l.table.Take(ctx, decide.Ask{Call: "TakeUpTo", Key: key, Permits: n, UpTo: true})
	return a.Taken, a.Decision, err
}

// Reset removes everything kept for key: all permits are free again. If its answer is lost, it is
// not repeated and returns limit.ErrUnknownOutcome.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	return l.table.Reset(ctx, "Reset", key)
}

// TakeReturnable is Take with a grant that can be undone while its window lasts: see [limit.Returner].
func (l *Limiter) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	a, err := l.table.Take(ctx, decide.Ask{Call: "TakeReturnable", Key: key, Permits: n, Undo: true})
	return a.Decision, a.Undo, err
}

// TakeReserved is Take for work whose cost is known later: see [limit.Reserver]. settle charges the actual cost, 0
// to MaxLimit, in the window in which the estimate was taken: what was used beyond it is charged even if it isn't
// free, and what was not used is free again. After the window's end it changes nothing.
//
// A second settle returns limit.ErrSettled. If ctx ends, it returns and finishes in the background. After
// limit.ErrUnavailable call it again with the same number, unless the error is limit.ErrUnknownOutcome too: a
// count can't show whether it was settled, so it is not settled again.
func (l *Limiter) TakeReserved(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context, int64) error, error) {
	q := decide.Ask{Call: "TakeReserved", Key: key, Permits: n, Reserve: true}
	a, err := l.table.Take(ctx, q)
	return a.Decision, l.table.Settler(q, a), err
}

// ask returns the call that decides a batch.
func (l *Limiter) ask(key string, b *lane.Batch) *keyed.Try {
	keys := script.KeysOf(key)
	q := &keyed.Try{Read: func(reply any, err error) (lane.Outcome, error) { return l.read(keys, reply, err) }}
	q.Script, q.Keys = lua.FixedWindow, keys
	most := script.Number(l.cfg.Limit)
	if !l.calendar() {
		q.Args = script.Constant(b.Args([]any{most, l.cfg.Window.Milliseconds()}))
		return q
	}
	q.Args = script.ArgumentsFunc(func(all []any, a script.Attempt) []any {
		if a.Token != "" {
			l.clock.hear(a.Token)
		}
		return b.Args(append(all, most, l.clock.windows().text))
	})
	return q
}

func (l *Limiter) read(keys *script.Keys, reply any, err error) (lane.Outcome, error) {
	if err != nil {
		return lane.Outcome{}, explain(err, keys)
	}
	v, end, err := keyed.Parse(reply)
	var window any = l.cfg.Window.Milliseconds()
	if l.calendar() {
		window = ""
	}
	answered := time.Now()
	v.GiveBack = func(ctx context.Context, permits int64) error {
		if time.Since(answered) >= v.Reset {
			// If the server's clock has gone back, a later window can have the same end.
			return nil
		}
		_, err := l.table.Lanes.Once(ctx, lua.FixedWindowSettle, keys, permits, end, window)
		return explain(err, keys)
	}
	v.Charge = func(ctx context.Context, more int64) error { return v.GiveBack(ctx, -more) }
	return v, err
}

func explain(err error, keys *script.Keys) error {
	return script.Explain(err, keys.Names(), "the count of a fixed window, a string", "")
}
