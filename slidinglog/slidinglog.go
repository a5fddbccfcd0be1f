// Package slidinglog limits by a log of grants: in any span of the window's length it grants at most the limit.
//
// The state of a key is one sorted set in Redis, with a member for each permit granted, scored by the
// server's time in epoch milliseconds. Many services keep such logs with a script of a few lines; they
// can share the keys with this package while they run. Limits of single keys may be kept in Redis too, in
// a hash of thresholds. It is read for every decision, so a change by any program takes effect at once.
//
// A log needs memory for each permit. If a limit is high, use package tokenbucket, or the module's
// RateLimiter, which keeps permits granted together in one member.
package slidinglog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
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

const (
	// MaxLimit is the highest limit and threshold.
	MaxLimit = 1<<53 - 1

	// MaxPermits is the most permits that one request can ask for: each is a member of the log, and no
	// call writes more of them.
	MaxPermits = 500
)

// Config configures a Limiter.
type Config struct {
	// Limit is how many permits any span of Window grants, for keys without a
	// threshold of their own: 1 to MaxLimit, and with Thresholds also 0.
	Limit int64

	// Window is the span's length, a whole number of milliseconds, at least 1.
	Window time.Duration

	// Thresholds names the hash that holds limits of single keys, such as "rate:limit:config"; its
	// fields are the keys, and it can't be one of them. Without it, Limit is the limit of every key.
	Thresholds string
}

func (c Config) validate() error {
	switch {
	case c.Limit < 0 || c.Limit > MaxLimit || c.Limit == 0 && c.Thresholds == "":
		return fmt.Errorf("%w: limit %d is not between 1 and %d", limit.ErrInvalidConfig, c.Limit, int64(MaxLimit))
	case c.Window < time.Millisecond || c.Window%time.Millisecond != 0:
		return fmt.Errorf("%w: window %v is not a whole number of milliseconds, at least 1", limit.ErrInvalidConfig, c.Window)
	}
	return nil
}

type ofModule = door.Door[outage.Keyed] // an alias, so that the field has no exported name

// Limiter limits any number of keys by one rule. It is safe for concurrent use; callers that ask for
// one key at the same time share a call.
type Limiter struct {
	ofModule

	cfg   Config
	table *keyed.Queues

	origin   string        // the beginning of the members' names
	attempts atomic.Uint64 // makes the names differ

	apart atomic.Bool // the server refuses a log and the thresholds in one call
}

// New returns a Limiter on a Client, which has the observer, the policy for outages and so on, and whose Close ends it. It
// does no I/O. The options WithName, WithFailure and WithShadow of the Client's package apply to it. If cfg or an option is
// bad, each call returns the error.
func New(client *rratelimiter.Client, cfg Config, opts ...rratelimiter.LimiterOption) *Limiter {
	l := &Limiter{cfg: cfg}
	var origin [8]byte
	_, _ = rand.Read(origin[:]) // never fails
	l.origin = hex.EncodeToString(origin[:])
	most := cfg.Limit
	if cfg.Thresholds != "" {
		most = 0
	}
	l.table = keyed.New(client, keyed.Rule{
		Package: "slidinglog", Err: cfg.validate(), Most: MaxPermits, Limit: most,
		Local: func() local.Rule { return local.Rule{Permits: cfg.Limit, Window: cfg.Window} }, Repeat: true, Write: "ZADD", Check: l.check, Ask: l.ask,
	}, opts)
	l.ofModule = door.New[outage.Keyed](l, l.table)
	return l
}

// Window returns the length of the span.
func (l *Limiter) Window() time.Duration { return l.cfg.Window }

// Err returns the error that every call returns if the Config or an option is bad, and nil otherwise.
// It does no I/O.
func (l *Limiter) Err() error { return l.table.Err() }

// Take takes n permits of key if they are free. In the Decision, Limit is the key's threshold, or
// Config.Limit if it has none. A threshold of 0 refuses all; RetryAfter is then a Window, since only a
// change of the threshold can help.
//
// When ctx ends, Take returns ctx.Err() at once, and any later grant is given back. A request whose
// answer was lost is repeated and takes its permits once. Errors: limit.ErrInvalidConfig for an empty
// key or the key of the thresholds, limit.ErrInvalidPermits for n below 1 or above MaxPermits,
// limit.ErrPermitsExceedRate for n above the limit, limit.ErrCorrupt if the key holds something else or
// the threshold is not a number of 0 or more, limit.ErrClosed after the Client's Close, limit.ErrNotReplicated,
// and limit.ErrUnavailable if Redis did not decide in time.
// If permits may have been taken, the error is limit.ErrUnknownOutcome too.
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

// Reset removes the log of key, whatever the key holds: all permits are free again. Its threshold
// stays. If its answer is lost, Reset is not repeated and returns limit.ErrUnknownOutcome.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	return l.table.Reset(ctx, "Reset", key)
}

// TakeReturnable is Take with a grant that can be undone: see [limit.Returner].
func (l *Limiter) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	a, err := l.table.Take(ctx, decide.Ask{Call: "TakeReturnable", Key: key, Permits: n, Undo: true})
	return a.Decision, a.Undo, err
}

// check returns an error for a key that can't be used: a log in place of the thresholds would make
// every key's decision fail.
func (l *Limiter) check(key string) error {
	if key != l.cfg.Thresholds {
		return nil
	}
	return fmt.Errorf("%w: this is the hash that Config.Thresholds names: give the keys a prefix that it has not, or rename it",
		limit.ErrInvalidConfig)
}

// ask returns the call that decides a batch. The script reads the threshold if the server allows
// that; otherwise a call before does.
func (l *Limiter) ask(key string, b *lane.Batch) *keyed.Try {
	switch {
	case l.cfg.Thresholds == "":
		return l.question(script.KeysOf(key), key, l.cfg.Limit, b)
	case l.apart.Load() || !l.table.Lanes.Conn.Together(key, l.cfg.Thresholds):
		return l.askApart(key, b)
	}
	q := l.question(script.KeysOf(key, l.cfg.Thresholds), key, l.cfg.Limit, b)
	read := q.Read
	q.Read = func(reply any, err error) (lane.Outcome, error) {
		v, err := read(reply, err)
		if errors.Is(err, limit.ErrUnsupported) {
			l.apart.Store(true)
			q.Next = l.askApart(key, b)
		}
		return v, err
	}
	return q
}

// askApart returns the call that reads the threshold. The batch is then decided by that.
func (l *Limiter) askApart(key string, b *lane.Batch) *keyed.Try {
	q := &keyed.Try{}
	q.Script, q.Keys, q.Args = lua.Command, script.KeysOf(l.cfg.Thresholds), script.Constant{"HGET", key}
	q.Repeat, q.Reads, q.Since = true, true, time.Now()
	q.Read = func(reply any, err error) (lane.Outcome, error) {
		most, err := l.parse(key, reply, err)
		if err == nil {
			q.Next = l.question(script.KeysOf(key), key, most, b)
			q.Next.Since = q.Since
		}
		return lane.Outcome{}, err
	}
	return q
}

// question returns an attempt to decide a batch.
func (l *Limiter) question(keys *script.Keys, field string, most int64, b *lane.Batch) *keyed.Try {
	id := l.origin + "-" + strconv.FormatUint(l.attempts.Add(1), 36)
	q := &keyed.Try{Read: func(reply any, err error) (lane.Outcome, error) { return l.outcome(b, reply, err, keys, id) }}
	q.Script, q.Keys, q.Repeat = lua.SlidingLog, keys, true
	q.Args = script.ArgumentsFunc(func(all []any, a script.Attempt) []any {
		repeated := ""
		if a.Age >= 0 {
			repeated = "1"
		}
		return b.Args(append(all, script.Number(most), l.cfg.Window.Milliseconds(), field, id, repeated))
	})
	return q
}

func (l *Limiter) outcome(b *lane.Batch, reply any, err error, keys *script.Keys, id string) (lane.Outcome, error) {
	if err != nil {
		return lane.Outcome{}, l.explain(err, keys.Names())
	}
	v, _, err := keyed.Parse(reply)
	if v.Limit == 0 {
		v.RetryAfters = slices.Repeat([]int64{l.cfg.Window.Milliseconds()}, len(b.Runs))
	}
	log := script.KeysOf(keys.Names()[0])
	var mu sync.Mutex
	left := v.Taken
	v.GiveBack = func(ctx context.Context, permits int64) error {
		mu.Lock()
		left -= permits
		first := left
		mu.Unlock()
		c := script.Call{Script: lua.SlidingLogGiveBack, Keys: log, Repeat: true}
		c.Args = script.Constant{id, first, permits, l.cfg.Window.Milliseconds()}
		_, err := l.table.Lanes.Run(ctx, &c)
		return l.explain(err, log.Names())
	}
	return v, err
}

func (l *Limiter) explain(err error, keys []string) error {
	if hash, _, why, ok := script.Corrupt(err, keys); ok && len(keys) == 2 {
		return corruptThreshold(hash, keys[0], why)
	}
	return script.Explain(err, keys, "the log of a sliding window, a sorted set, or the hash of its thresholds", "")
}

func corruptThreshold(hash, field, why string) error {
	return fmt.Errorf("%w: key %q: threshold %q %s; set it by SetThreshold or remove it by ResetThreshold",
		limit.ErrCorrupt, hash, field, why)
}
