package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
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
	exact     bool     // its members are not merged
	resets    bool     // callers also Reset it
	reserves  bool     // they reserve and settle, and do not release
	overrides bool     // they set rates for a while
	wild      bool     // all calls are made, also those that forget permits in use
	threshold string   // the hash of a sliding log's thresholds
	redisson  string   // the release of the Redisson programs that use it too
	mints     bool     // they make calls too that may forget permits in use
	family    []string // limiters that TryAcquireAll takes together, this one first
}

// isRate reports whether it is a RateLimiter.
func (l *limiter) isRate() bool { return l.kind == overall || l.kind == perClient || l.kind == keyed }

// counted reports whether nothing comes back by itself while a round lasts.
func (l *limiter) counted() bool { return l.config.Interval >= time.Hour }

// late is how much later than an interval permits come back at most.
func (l *limiter) late() time.Duration {
	if l.exact || !l.isRate() {
		return 0
	}
	return l.config.Interval / 64
}

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
		{l.exact, ", exact"},
		{l.resets, ", reset"},
		{l.reserves, ", reserved"},
		{l.overrides, ", overridden"},
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
	rate *rratelimiter.RateLimiter // of a RateLimiter
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

// handle returns the limiter in the hands of the Client.
func (l *limiter) handle(client *rratelimiter.Client) *handle {
	h := &handle{limiter: l, key: l.name}
	var opts []rratelimiter.LimiterOption
	if l.lease > 0 {
		opts = append(opts, rratelimiter.WithLease(rratelimiter.Lease{Permits: l.leased(), Life: l.lease}))
	}
	if l.refusals {
		opts = append(opts, rratelimiter.WithRefusalCache())
	}
	if l.exact {
		opts = append(opts, rratelimiter.WithExact())
	}
	switch l.kind {
	case overall, perClient:
		if l.byDefault {
			opts = append(opts, rratelimiter.WithDefault(l.config))
		}
		h.rate = client.RateLimiter(l.name, opts...)
		h.keysLimiter = oneKey{h.rate}
	case keyed:
		all := client.Keyed(l.prefix, l.config, opts...)
		h.keysLimiter, h.key = all, l.name[len(l.prefix):]
		h.rate = all.Limiter(h.key)
	case window:
		h.keysLimiter = fixedwindow.New(client, fixedwindow.Config{Limit: l.config.Rate, Window: l.config.Interval})
	case log:
		h.log = slidinglog.New(client, slidinglog.Config{Limit: l.config.Rate, Window: l.config.Interval, Thresholds: l.threshold})
		h.keysLimiter = h.log
	case bucket:
		h.keysLimiter = tokenbucket.New(client, tokenbucket.Config{
			Capacity: l.config.Rate, Refill: l.refill, Interval: l.config.Interval, Borrow: l.borrow,
		})
	}
	return h
}

// The calls, by the names that records have for them.
const (
	opTry       = "TryAcquire"
	opWait      = "TryAcquire, waiting"
	opAcquire   = "Acquire"
	opTake      = "Take"
	opUpTo      = "TakeUpTo"
	opPeek      = "Peek"
	opReset     = "Reset"
	opAll       = "TryAcquireAll"
	opReserve   = "Reserve"
	opSettle    = "Settle"
	opProlong   = "Renew"
	opRelease   = "Release"
	opUpdate    = "UpdateRate, KeepState"
	opSetKeep   = "SetRate, KeepState"
	opOverride  = "SetRate, For"
	opTrySet    = "TrySetRate"
	opAvailable = "AvailablePermits"
	opThreshold = "SetThreshold"

	opSet     = "SetRate"
	opRenew   = "UpdateRate"
	opExpire  = "Expire"
	opClear   = "ClearExpire"
	opDelete  = "Delete"
	opRename  = "Rename"
	opMigrate = "Migrate"
	opConfig  = "Config"
	opTTL     = "TTL"
)

// An operation is a call that callers make.
type operation struct {
	name   string
	weight int                   // how often it is drawn beside the others
	on     func(l *limiter) bool // what it is made on
	do     doer
}

// A doer makes a call, and notes in it what else it learned.
type doer func(ctx context.Context, p *party, h *handle, c *call) (answer, error)

func anyLimiter(*limiter) bool      { return true }
func waitable(l *limiter) bool      { return l.kind == overall || l.kind == perClient }
func releasable(l *limiter) bool    { return waitable(l) && !l.reserves }
func reservable(l *limiter) bool    { return l.reserves || l.wild }
func renewable(l *limiter) bool     { return l.reserves && l.counted() } // where permits run out, checks don't know how long renewed ones stay
func wild(l *limiter) bool          { return l.wild }
func overridable(l *limiter) bool   { return waitable(l) && l.overrides }
func resettable(l *limiter) bool    { return l.resets || l.wild }
func inFamily(l *limiter) bool      { return len(l.family) > 0 }
func withThreshold(l *limiter) bool { return l.threshold != "" }

// decision is the answer to a call that asks for permits.
func decision(ok bool, err error) (answer, error) {
	if ok {
		return granted, err
	}
	return refused, err
}

// plain is a call that returns an error only, or what nothing is checked of.
func plain(do func(ctx context.Context, h *handle, c *call) error) doer {
	return func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) { return done, do(ctx, h, c) }
}

// telling is a call that reports whether it has changed a rate, or would grant permits.
func telling(do func(ctx context.Context, h *handle, c *call) (bool, error)) doer {
	return plain(func(ctx context.Context, h *handle, c *call) (err error) {
		c.Did, err = do(ctx, h, c)
		return err
	})
}

// operations are drawn from in this order.
var operations = []operation{
	{opTry, 40, waitable, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		return decision(h.rate.TryAcquire(ctx, c.Permits, 0))
	}},
	{opWait, 12, waitable, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		return decision(h.rate.TryAcquire(ctx, c.Permits, c.Timeout))
	}},
	{opAcquire, 6, waitable, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		return granted, h.rate.Acquire(ctx, c.Permits)
	}},
	{opTake, 20, anyLimiter, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		d, err := h.Take(ctx, h.key, c.Permits)
		return decision(d.Granted, err)
	}},
	{opUpTo, 10, anyLimiter, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		taken, _, err := h.TakeUpTo(ctx, h.key, c.Asked)
		// One permit is refused. If that is unknown, it may be all.
		if c.Permits = max(1, taken); err != nil {
			c.Permits = c.Asked
		}
		return decision(taken > 0, err)
	}},
	{opPeek, 8, anyLimiter, telling(func(ctx context.Context, h *handle, c *call) (bool, error) {
		d, err := h.Peek(ctx, h.key, c.Permits)
		return d.Granted, err
	})},
	{opReset, 3, resettable, plain(func(ctx context.Context, h *handle, _ *call) error { return h.Reset(ctx, h.key) })},
	{opAll, 20, inFamily, func(ctx context.Context, p *party, h *handle, c *call) (answer, error) {
		claims := make([]rratelimiter.Claim, len(h.family))
		for i, name := range h.family {
			claims[i] = p.handles[name].rate.Claim(c.permitsOf(name))
		}
		return decision(p.client.TryAcquireAll(ctx, c.Timeout, claims...))
	}},
	{opReserve, 20, reservable, func(ctx context.Context, p *party, h *handle, c *call) (answer, error) {
		r, err := h.rate.Reserve(ctx, c.Permits, 0)
		if err != nil || !r.Granted {
			return refused, err
		}
		c.Reservation = p.reserve(h.name, c.Permits, r)
		return granted, nil
	}},
	{opSettle, 30, reservable, plain(func(ctx context.Context, _ *handle, c *call) error { return c.reserved.Settle(ctx, c.Used) })},
	{opProlong, 10, renewable, plain(func(ctx context.Context, _ *handle, c *call) error {
		err := c.reserved.Renew(ctx)
		if errors.Is(err, rratelimiter.ErrSettled) { // others may have settled or reset it meanwhile
			return nil
		}
		return err
	})},
	{opRelease, 25, releasable, plain(func(ctx context.Context, h *handle, c *call) error { return h.rate.Release(ctx, c.Permits) })},
	{opUpdate, 3, waitable, telling(func(ctx context.Context, h *handle, c *call) (bool, error) {
		return h.rate.UpdateRate(ctx, h.configOf(c), rratelimiter.KeepState())
	})},
	{opSetKeep, 1, waitable, telling(func(ctx context.Context, h *handle, c *call) (bool, error) {
		err := h.rate.SetRate(ctx, h.configOf(c), rratelimiter.KeepState())
		return err == nil, err
	})},
	{opOverride, 5, overridable, telling(func(ctx context.Context, h *handle, c *call) (bool, error) {
		err := h.rate.SetRate(ctx, h.configOf(c), rratelimiter.For(c.Lasts))
		return err == nil, err
	})},
	{opTrySet, 1, waitable, telling(func(ctx context.Context, h *handle, c *call) (bool, error) {
		return h.rate.TrySetRate(ctx, h.configOf(c))
	})},
	{opAvailable, 6, waitable, plain(func(ctx context.Context, h *handle, c *call) (err error) {
		c.Free, err = h.rate.AvailablePermits(ctx)
		return err
	})},
	{opThreshold, 3, withThreshold, plain(func(ctx context.Context, h *handle, c *call) error {
		return h.log.SetThreshold(ctx, h.key, c.Rate)
	})},
	{opSet, 4, wild, plain(func(ctx context.Context, h *handle, c *call) error { return h.rate.SetRate(ctx, h.configOf(c)) })},
	{opRenew, 2, wild, plain(func(ctx context.Context, h *handle, c *call) error {
		return limitertest.Second(h.rate.UpdateRate(ctx, h.configOf(c)))
	})},
	{opExpire, 3, wild, plain(func(ctx context.Context, h *handle, c *call) error {
		return limitertest.Second(h.rate.Expire(ctx, time.Duration(c.Permits)*200*time.Millisecond))
	})},
	{opClear, 3, wild, plain(func(ctx context.Context, h *handle, _ *call) error {
		return limitertest.Second(h.rate.ClearExpire(ctx))
	})},
	{opDelete, 3, wild, plain(func(ctx context.Context, h *handle, _ *call) error { return limitertest.Second(h.rate.Delete(ctx)) })},
	{opRename, 3, wild, plain(func(ctx context.Context, h *handle, _ *call) error { return h.rate.Rename(ctx, h.name+"2") })},
	{opMigrate, 2, wild, plain(func(ctx context.Context, h *handle, _ *call) error { return limitertest.Second(h.rate.Migrate(ctx)) })},
	{opConfig, 2, waitable, plain(func(ctx context.Context, h *handle, _ *call) error { return limitertest.Second(h.rate.Config(ctx)) })},
	{opTTL, 2, waitable, plain(func(ctx context.Context, h *handle, _ *call) error {
		_, _, err := h.rate.TTL(ctx)
		return err
	})},
}

// configOf is the configuration that a call sets.
func (l *limiter) configOf(c *call) rratelimiter.Config {
	cfg := l.config
	cfg.Rate = c.Rate
	return cfg
}

// drawOperation draws a call that can be made on the limiter.
func drawOperation(draw *rand.Rand, l *limiter) operation {
	var all []operation
	for _, op := range operations {
		if op.on(l) {
			all = append(all, slices.Repeat([]operation{op}, op.weight)...)
		}
	}
	return all[draw.IntN(len(all))]
}

// drawCall draws the figures of a call.
func drawCall(draw *rand.Rand, op operation, l *limiter) call {
	c := call{Op: op.name, Limiters: []string{l.name}}
	switch op.name {
	case opTry, opTake, opUpTo, opPeek, opWait, opAcquire, opAll, opReserve, opExpire:
		c.Permits = 1 + draw.Int64N(3)
		if draw.IntN(8) == 0 {
			c.Permits += draw.Int64N(max(1, l.config.Rate/2))
		}
	case opUpdate, opSetKeep, opOverride, opTrySet, opSet, opRenew, opThreshold:
		c.Rate = l.config.Rate/2 + 1 + draw.Int64N(l.config.Rate)
	}
	switch op.name {
	case opUpTo:
		c.Asked = c.Permits
	case opAll:
		c.Limiters = l.family
		if draw.IntN(3) == 0 {
			c.Timeout = drawTimeout(draw)
		}
	case opWait:
		c.Timeout = drawTimeout(draw)
	case opOverride:
		c.Lasts = drawTimeout(draw)
	}
	if op.name == opAcquire || draw.IntN(6) == 0 {
		c.Ends = drawTimeout(draw)
		c.Cancels = draw.IntN(2) == 0
	}
	return c
}

func drawTimeout(draw *rand.Rand) time.Duration {
	if draw.IntN(3) == 0 {
		return time.Duration(1+draw.IntN(10)) * time.Millisecond
	}
	return time.Duration(1+draw.IntN(400)) * time.Millisecond
}
