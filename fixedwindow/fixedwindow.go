// Package fixedwindow limits by a count that is reset when its window ends.
//
// The state of a key is one string in Redis: how many permits the window has granted. It expires when the window
// ends, and the next grant begins another window. The fixed windows and counters that many services keep in
// Redis with a script of a few lines work the same way; both can share the key with this package while they run.
//
// A window lasts for a time from its first grant on, or with a [Calendar] for a day, a week, a month, or an hour by the clock.
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
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/recent"
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

	// Calendar, in place of Window, makes windows end at a date, such as each day's midnight in Berlin, or at
	// each full hour. The server's clock decides which window it is.
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
	case c.Calendar.every == aligned && (c.Calendar.length < time.Second || c.Calendar.length%time.Millisecond != 0):
		return fmt.Errorf("%w: aligned windows can't last %v: a whole number of milliseconds, at least 1s", limit.ErrInvalidConfig, c.Calendar.length)
	case c.Calendar.first < time.Sunday || c.Calendar.first > time.Saturday:
		return fmt.Errorf("%w: a week can't begin with weekday %d", limit.ErrInvalidConfig, c.Calendar.first)
	}
	return nil
}

type ofModule = door.Door[outage.Keyed] // an alias, so that the field has no exported name

// Limiter limits any number of keys. It is a [limit.Returner], a [limit.Reserver] and a [limit.Windowed], safe for
// concurrent use; callers that ask for one key at the same time share a call.
type Limiter struct {
	ofModule

	rule   *rule // of all keys; of NewFunc, what the options say
	config func(key string) Config
	made   func(Config) *rule
	known  *recent.Map[Config, *rule]
}

// New returns a Limiter on a Client, which has the observer, the policy for outages and so on, and whose Close ends it. It
// does no I/O. The options WithName, WithFailure and WithShadow of the Client's package apply to it. If cfg or an option is
// bad, each call returns the error.
func New(client *rratelimiter.Client, cfg Config, opts ...rratelimiter.LimiterOption) *Limiter {
	l := &Limiter{rule: newRule(client, cfg, cfg.validate(), opts)}
	l.ofModule = door.New[outage.Keyed](l, l.rule.table)
	return l
}

// NewFunc is [New] with a rule for each key, such as the quota of a user's plan. It asks config at every call, so config
// must be quick, as a map or a cache is, and safe for concurrent use. Another answer than the last holds from the next call
// on: what was granted stays counted, and a window that has begun ends no later than one of the new rule. If config returns
// a bad Config, calls for that key return limit.ErrInvalidConfig. Behind middleware it gets the key as the
// program made it.
func NewFunc(client *rratelimiter.Client, config func(key string) Config, opts ...rratelimiter.LimiterOption) *Limiter {
	if config == nil {
		return New(client, Config{}, opts...)
	}
	l := &Limiter{config: config, known: recent.New[Config, *rule](maxRules), rule: newRule(client, Config{}, nil, opts)}
	l.made = func(cfg Config) *rule { return newRule(client, cfg, cfg.validate(), opts) }
	l.ofModule = door.New[outage.Keyed](l, (*ofKeys)(l))
	return l
}

// maxRules is how many bytes the rules take at most that a function's answers have, and ruleSize about what one takes.
const maxRules, ruleSize = 16 << 20, 6 << 10

// of returns the rule of a key.
func (l *Limiter) of(key string) *rule {
	if l.config == nil {
		return l.rule
	}
	cfg := l.config(key)
	if r, ok := l.known.Get(cfg); ok {
		return r
	}
	return l.known.Add(cfg, l.made(cfg), ruleSize, func(*rule) bool { return true })
}

// ofKeys is a Limiter with a rule for each key in the role of outage.Keyed.
type ofKeys Limiter

func (l *ofKeys) Policy() outage.Policy { return l.rule.table.Policy() }

func (l *ofKeys) Suffix() string { return l.rule.table.Suffix() }

func (l *ofKeys) Holds() bool { return l.rule.table.Holds() }

func (l *ofKeys) Asker(q decide.Ask) outage.Asker {
	return (*Limiter)(l).of(q.Made).table
}

// Window returns the window's length; with a Calendar that of the current window. It is 0 for NewFunc.
func (l *Limiter) Window() time.Duration { return l.rule.window() }

// Err returns the error that every call returns if New's Config or an option is bad, and nil otherwise.
// It does no I/O.
func (l *Limiter) Err() error { return l.rule.table.Err() }

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
	a, err := l.of(key).table.Take(ctx, decide.Ask{Call: "Take", Key: key, Permits: n})
	return a.Decision, err
}

// Peek returns what Take would return now, without taking anything; with n 0 it answers how many permits are
// free, as Remaining, and is not Granted only if more are used than the limit. It changes nothing in Redis, not even times
// to live, and a later Take may still be refused. Errors are those of Take, except limit.ErrUnknownOutcome.
func (l *Limiter) Peek(ctx context.Context, key string, n int64) (limit.Decision, error) {
	return l.of(key).table.Peek(ctx, "Peek", key, n)
}

// TakeUpTo takes as many permits of key as are free, at most n, and returns how many. If none is free
// it returns 0 and a Decision that is not Granted, with the RetryAfter of one permit. Errors are those
// of Take, except limit.ErrPermitsExceedRate.
func (l *Limiter) TakeUpTo(ctx context.Context, key string, n int64) (int64, limit.Decision, error) {
	a, err := l.of(key).table.Take(ctx, decide.Ask{Call: "TakeUpTo", Key: key, Permits: n, UpTo: true})
	return a.Taken, a.Decision, err
}

// Reset removes everything kept for key: all permits are free again. If its answer is lost, it is
// not repeated and returns limit.ErrUnknownOutcome.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	return l.of(key).table.Reset(ctx, "Reset", key)
}

// TakeReturnable is Take with a grant that can be undone while its window lasts: see [limit.Returner].
func (l *Limiter) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	a, err := l.of(key).table.Take(ctx, decide.Ask{Call: "TakeReturnable", Key: key, Permits: n, Undo: true})
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
	table := l.of(key).table
	a, err := table.Take(ctx, q)
	return a.Decision, table.Settler(q, a), err
}
