package chaos_test

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// kind is what sort of limiter one is.
type kind string

const (
	overall   kind = "overall"
	perClient kind = "per-client"
	keyed     kind = "keyed"
	window    kind = "fixed-window"
	log       kind = "sliding-log"
	bucket    kind = "token-bucket"
)

// A limiter is one that a round's callers use.
type limiter struct {
	name      string // in Redis; of another kind than RateLimiter the key
	prefix    string // of a keyed one
	kind      kind
	config    rratelimiter.Config // Rate and Interval are the limit and window of all kinds
	refill    int64               // of a token bucket, each interval
	borrow    int64
	byDefault bool // handles bring the rate along
	lease     time.Duration
	refusals  bool
	resets    bool     // callers also Reset it
	wild      bool     // all calls are made, also those that forget permits in use
	threshold string   // the hash of a sliding log's thresholds
	redisson  string   // the release of Redisson that programs have which use it too
	mints     bool     // they make calls too that may forget permits in use
	family    []string // limiters that TryAcquireAll takes together, this one first
}

// isRate tells whether it is a RateLimiter.
func (l *limiter) isRate() bool { return l.kind == overall || l.kind == perClient || l.kind == keyed }

// counted tells whether nothing comes back by itself while a round lasts.
func (l *limiter) counted() bool { return l.config.Interval >= time.Hour }

// leased is how many permits a lease may hold.
func (l *limiter) leased() int64 { return 1 + l.config.Rate/4 }

func (l *limiter) String() string {
	text := fmt.Sprintf("%s: %s, %d each %v", l.name, l.kind, l.config.Rate, l.config.Interval)
	for _, has := range []struct {
		there bool
		text  string
	}{
		{l.config.KeepAlive > 0, fmt.Sprintf(", kept alive %v", l.config.KeepAlive)},
		{l.kind == bucket, fmt.Sprintf(", refilled by %d, borrowing %d", l.refill, l.borrow)},
		{l.byDefault, ", by default"},
		{l.lease > 0, fmt.Sprintf(", leases of %v", l.lease)},
		{l.refusals, ", refusals remembered"},
		{l.resets, ", reset"},
		{l.wild, ", all calls"},
		{l.threshold != "", ", with a threshold"},
		{l.redisson != "", ", shared with Redisson " + l.redisson},
		{l.mints, ", which gives back too"},
		{len(l.family) > 0, fmt.Sprintf(", together with %v", l.family)},
	} {
		if has.there {
			text += has.text
		}
	}
	return text
}

// keys returns the config, value and set of a RateLimiter, as the client of that id has
// them; of another limiter its one or two keys.
func (l *limiter) keys(id string) (config, value, permits string) {
	switch {
	case l.kind == bucket:
		return "", l.name, l.name + "_time"
	case !l.isRate():
		return "", l.name, l.name
	}
	k := redisson.KeysOf(l.name, id)
	if l.kind == perClient {
		return k.Config, k.ClientValue, k.ClientPermits
	}
	return k.Config, k.Value, k.Permits
}

// A handle is a limiter in the hands of one Client.
type handle struct {
	*limiter
	keysLimiter // all kinds are asked through this

	key  string
	rate *rratelimiter.RateLimiter // of a RateLimiter, save a keyed one
	log  *slidinglog.Limiter
}

// keysLimiter is what all limiters of keys have.
type keysLimiter interface {
	limit.Limiter

	Peek(ctx context.Context, key string, n int64) (limit.Decision, error)
	TakeUpTo(ctx context.Context, key string, n int64) (int64, limit.Decision, error)
	Reset(ctx context.Context, key string) error
}

// oneKey is a RateLimiter as a limiter of one key.
type oneKey struct{ *rratelimiter.RateLimiter }

func (k oneKey) Take(ctx context.Context, _ string, n int64) (limit.Decision, error) {
	return k.RateLimiter.Take(ctx, n)
}

func (k oneKey) Peek(ctx context.Context, _ string, n int64) (limit.Decision, error) {
	return k.RateLimiter.Peek(ctx, n)
}

func (k oneKey) TakeUpTo(ctx context.Context, _ string, n int64) (int64, limit.Decision, error) {
	return k.RateLimiter.TakeUpTo(ctx, n)
}

func (k oneKey) Reset(ctx context.Context, _ string) error { return k.RateLimiter.Reset(ctx) }

// handle returns the limiter in the hands of the Client, which uses rdb.
func (l *limiter) handle(client *rratelimiter.Client, rdb rratelimiter.Redis, callTimeout time.Duration) *handle {
	h := &handle{limiter: l, key: l.name}
	timeout := limit.WithCallTimeout(callTimeout)
	switch l.kind {
	case overall, perClient:
		var opts []rratelimiter.LimiterOption
		if l.byDefault {
			opts = append(opts, rratelimiter.WithDefault(l.config))
		}
		if l.lease > 0 {
			opts = append(opts, rratelimiter.WithLease(rratelimiter.Lease{Permits: l.leased(), Life: l.lease}))
		}
		if l.refusals {
			opts = append(opts, rratelimiter.WithRefusalCache())
		}
		h.rate = client.RateLimiter(l.name, opts...)
		h.keysLimiter = oneKey{h.rate}
	case keyed:
		h.keysLimiter, h.key = client.Keyed(l.prefix, l.config), l.name[len(l.prefix):]
	case window:
		h.keysLimiter = fixedwindow.New(rdb, fixedwindow.Config{Limit: l.config.Rate, Window: l.config.Interval}, timeout)
	case log:
		h.log = slidinglog.New(rdb, slidinglog.Config{Limit: l.config.Rate, Window: l.config.Interval, Thresholds: l.threshold}, timeout)
		h.keysLimiter = h.log
	case bucket:
		h.keysLimiter = tokenbucket.New(rdb, tokenbucket.Config{
			Capacity: l.config.Rate, Refill: l.refill, Interval: l.config.Interval, Borrow: l.borrow,
		}, timeout)
	}
	return h
}
