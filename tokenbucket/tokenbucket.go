// Package tokenbucket limits by a bucket of tokens that is refilled at a steady rate. A burst may take
// all the bucket holds; in the long run no more is granted than is refilled.
//
// The state of a key is two strings in Redis: the tokens at the key itself, and the epoch second of
// the last refill at the key followed by "_time". Many services keep such buckets with a script of a
// few lines; they can share the keys with this package while they run. They count whole seconds, so
// the interval of a refill is in whole seconds too.
//
// On a cluster or a Ring both keys must be on one server: give the key a hash tag, as in "{user1}".
// The tag also allows a user called "ann_time": as a key that is refused, since it would be the second
// key of the user "ann". Packages httplimit and grpclimit avoid that without a tag.
package tokenbucket

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
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

// MaxTokens is the most tokens that can be counted exactly: Lua numbers are doubles.
const MaxTokens = 1<<53 - 1

// Config configures a Limiter.
type Config struct {
	// Capacity is how many tokens a full bucket has: 1 to MaxTokens. A bucket starts full.
	Capacity int64

	// Refill is how many tokens are added each Interval, up to the Capacity: 1 to MaxTokens.
	Refill int64

	// Interval is the time between two refills, a whole number of seconds, at least 1: the scripts
	// that share the bucket keep the time of the last refill in seconds.
	Interval time.Duration

	// Borrow is how many tokens may be taken beyond those in the bucket; refills pay them back first. 0, the
	// default, allows none. Capacity and Borrow together are at most MaxTokens. All programs that share a bucket
	// should allow the same: for a program that allows less, the bucket is empty until it has been paid back.
	Borrow int64
}

func (c Config) validate() error {
	switch {
	case c.Capacity < 1 || c.Capacity > MaxTokens:
		return fmt.Errorf("%w: capacity %d is not between 1 and %d", limit.ErrInvalidConfig, c.Capacity, int64(MaxTokens))
	case c.Refill < 1 || c.Refill > MaxTokens:
		return fmt.Errorf("%w: refill %d is not between 1 and %d", limit.ErrInvalidConfig, c.Refill, int64(MaxTokens))
	case c.Interval < time.Second || c.Interval%time.Second != 0:
		return fmt.Errorf("%w: interval %v is not a whole number of seconds, at least 1", limit.ErrInvalidConfig, c.Interval)
	case c.Borrow < 0 || c.Borrow > MaxTokens-c.Capacity:
		return fmt.Errorf("%w: borrowing of %d tokens is not between 0 and %d", limit.ErrInvalidConfig, c.Borrow, MaxTokens-c.Capacity)
	case c.refills() > int64(maxFill/c.Interval):
		return fmt.Errorf("%w: the bucket takes more than %v to fill", limit.ErrInvalidConfig, maxFill)
	}
	return nil
}

// maxFill keeps epoch times within what Redis accepts as a time to live.
const maxFill = math.MaxInt64 * time.Nanosecond

// refills returns how many refills fill an empty bucket.
func (c Config) refills() int64 { return (c.Capacity+c.Borrow-1)/c.Refill + 1 }

// fill returns how long it takes to fill an empty bucket.
func (c Config) fill() time.Duration { return time.Duration(c.refills()) * c.Interval }

type ofModule = door.Door[outage.Keyed] // an alias, so that the field has no exported name

// Limiter limits any number of keys by one rule. It is safe for concurrent use; callers that ask for
// one key at the same time share a call.
type Limiter struct {
	ofModule

	cfg   Config
	table *keyed.Queues
}

// New returns a Limiter on a Client, which has the observer, the policy for outages and so on, and whose Close ends it. It
// does no I/O. The options WithName, WithFailure and WithShadow of the Client's package apply to it. If cfg or an option is
// bad, each call returns the error.
func New(client *rratelimiter.Client, cfg Config, opts ...rratelimiter.LimiterOption) *Limiter {
	l := &Limiter{cfg: cfg}
	l.table = keyed.New(client, keyed.Rule{
		Package: "tokenbucket", Err: cfg.validate(), Most: MaxTokens, Limit: cfg.Capacity + cfg.Borrow,
		Local: func() local.Rule { return local.Rule{Permits: cfg.Capacity, Window: l.Window()} }, Check: l.check, Second: timeSuffix, Ask: l.ask,
	}, opts)
	l.ofModule = door.New[outage.Keyed](l, l.table)
	return l
}

// Window returns how long it takes to fill an empty bucket; 0 if the configuration is invalid.
func (l *Limiter) Window() time.Duration {
	if l.cfg.validate() != nil {
		return 0
	}
	return l.cfg.fill()
}

const timeSuffix = "_time"

// Err returns the error that every call returns if the Config or an option is bad, and nil otherwise.
// It does no I/O.
func (l *Limiter) Err() error { return l.table.Err() }

// Take takes n tokens from key's bucket if it has them or may borrow them. In the Decision, Limit is
// Capacity and Borrow together, Remaining is how many more could be taken, RetryAfter the time until
// enough has been refilled, and ResetAfter the time until the bucket is full.
//
// When ctx ends, Take returns ctx.Err() at once, and any later grant is given back. Errors:
// limit.ErrInvalidConfig for an empty key or one that is another key's second, limit.ErrInvalidPermits for n
// below 1, limit.ErrPermitsExceedRate for n above Capacity and Borrow together, limit.ErrCorrupt if the keys
// hold something else, limit.ErrUnsupported if a cluster has them in different slots, limit.ErrClosed after the
// Client's Close, limit.ErrNotReplicated, and limit.ErrUnavailable if Redis did not decide in time. If the answer
// was lost, the error is limit.ErrUnknownOutcome too: a bucket can't show whether the tokens were taken, so Take
// does not ask again.
func (l *Limiter) Take(ctx context.Context, key string, n int64) (limit.Decision, error) {
	a, err := l.table.Take(ctx, decide.Ask{Call: "Take", Key: key, Permits: n})
	return a.Decision, err
}

// Peek returns what Take would return now, without taking anything; with n 0 it answers how many tokens could be
// taken, as Remaining, and is not Granted only if more are owed than Borrow. It changes nothing in Redis,
// not even times to live, and a later Take may still be refused. Errors are those of Take, except limit.ErrUnknownOutcome.
func (l *Limiter) Peek(ctx context.Context, key string, n int64) (limit.Decision, error) {
	return l.table.Peek(ctx, "Peek", key, n)
}

// TakeUpTo takes as many tokens of key as it can, at most n, and returns how many. If it can take none
// it returns 0 and a Decision that is not Granted, with the RetryAfter of one token. Errors are those
// of Take, except limit.ErrPermitsExceedRate.
func (l *Limiter) TakeUpTo(ctx context.Context, key string, n int64) (int64, limit.Decision, error) {
	a, err := l.table.Take(ctx, decide.Ask{Call: "TakeUpTo", Key: key, Permits: n, UpTo: true})
	return a.Taken, a.Decision, err
}

// Reset removes everything kept for key: the bucket is full again. If its answer is lost, it is
// not repeated and returns limit.ErrUnknownOutcome.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	return l.table.Reset(ctx, "Reset", key)
}

// TakeReturnable is Take with a grant that can be undone: see [limit.Returner]. Tokens for which the
// bucket has no room are not added.
func (l *Limiter) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	a, err := l.table.Take(ctx, decide.Ask{Call: "TakeReturnable", Key: key, Permits: n, Undo: true})
	return a.Decision, a.Undo, err
}

// check returns an error for a key that can't be used: it would be another bucket's second, or its own
// second, where the bucket's time is, would be in another place.
func (l *Limiter) check(key string) error {
	if other := strings.TrimSuffix(key, timeSuffix); other != key && other != "" {
		return fmt.Errorf("%w: the bucket of the key %q keeps its time here: give keys that others choose a hash tag, as in %q",
			limit.ErrInvalidConfig, other, "{"+key+"}")
	}
	if second := key + timeSuffix; l.table.Lanes.Conn.Apart(key, second) {
		return fmt.Errorf("%w: the keys %q are on different shards: %s", limit.ErrUnsupported, []string{key, second}, advice(key))
	}
	return nil
}

// ask returns the call that decides a batch.
func (l *Limiter) ask(key string, b *lane.Batch) *keyed.Try {
	keys, c := script.KeysOf(key, key+timeSuffix), l.cfg
	q := &keyed.Try{Read: func(reply any, err error) (lane.Outcome, error) { return l.read(keys, reply, err) }}
	q.Script, q.Keys = lua.TokenBucket, keys
	q.Args = script.Constant(b.Args([]any{
		c.Capacity, c.Refill, int64(c.Interval / time.Second), c.Borrow, c.fill().Milliseconds(),
	}))
	return q
}

func (l *Limiter) read(keys *script.Keys, reply any, err error) (lane.Outcome, error) {
	if err != nil {
		return lane.Outcome{}, explain(err, keys.Names())
	}
	c := l.cfg
	v, last, err := keyed.Parse(reply)
	answered := time.Now()
	var mu sync.Mutex
	left := v.Free - v.Taken - c.Borrow
	v.GiveBack = func(ctx context.Context, permits int64) error {
		mu.Lock()
		before := left
		left += permits
		mu.Unlock()
		_, err := l.table.Lanes.Once(ctx, lua.TokenBucketGiveBack, keys,
			c.Capacity, c.Refill, int64(c.Interval/time.Second), permits, before, last,
			time.Since(answered).Milliseconds(), c.fill().Milliseconds())
		return explain(err, keys.Names())
	}
	v.Charge = func(ctx context.Context, more int64) error { return v.GiveBack(ctx, -more) }
	return v, err
}

func explain(err error, keys []string) error {
	return script.Explain(err, keys, "what a token bucket keeps, two strings", advice(keys[0]))
}

func advice(key string) string {
	return fmt.Sprintf("give the key one hash tag, as in %q", "{"+key+"}")
}
