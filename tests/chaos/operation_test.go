package chaos_test

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

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
	opRelease   = "Release"
	opUpdate    = "UpdateRate, KeepState"
	opSetKeep   = "SetRate, KeepState"
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
	do     func(ctx context.Context, p *party, h *handle, c *call) (answer, error)
}

func anyLimiter(*limiter) bool      { return true }
func waitable(l *limiter) bool      { return l.kind == overall || l.kind == perClient }
func wild(l *limiter) bool          { return l.wild }
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
		return decision(h.takeNow(ctx, c.Permits))
	}},
	{opUpTo, 10, anyLimiter, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		taken, err := h.takeUpTo(ctx, c.Asked)
		// What is refused is one permit. Where nobody knows, it may be all.
		if c.Permits = max(1, taken); err != nil {
			c.Permits = c.Asked
		}
		return decision(taken > 0, err)
	}},
	{opPeek, 8, anyLimiter, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		var err error
		c.Did, err = h.peek(ctx, c.Permits)
		return done, err
	}},
	{opReset, 3, resettable, func(ctx context.Context, _ *party, h *handle, _ *call) (answer, error) {
		return done, h.reset(ctx)
	}},
	{opAll, 20, inFamily, func(ctx context.Context, p *party, h *handle, c *call) (answer, error) {
		all := make([]*rratelimiter.RateLimiter, len(h.family))
		for i, name := range h.family {
			all[i] = p.handles[name].rate
		}
		return decision(p.client.TryAcquireAll(ctx, c.Permits, c.Timeout, all...))
	}},
	{opRelease, 25, waitable, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		return done, h.rate.Release(ctx, c.Permits)
	}},
	{opUpdate, 3, waitable, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		var err error
		c.Did, err = h.rate.UpdateRate(ctx, h.configOf(c), rratelimiter.KeepState())
		return done, err
	}},
	{opSetKeep, 1, waitable, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		err := h.rate.SetRate(ctx, h.configOf(c), rratelimiter.KeepState())
		c.Did = err == nil
		return done, err
	}},
	{opTrySet, 1, waitable, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		var err error
		c.Did, err = h.rate.TrySetRate(ctx, h.configOf(c))
		return done, err
	}},
	{opAvailable, 6, waitable, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		var err error
		c.Free, err = h.rate.AvailablePermits(ctx)
		return done, err
	}},
	{opThreshold, 3, withThreshold, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		return done, h.log.SetThreshold(ctx, h.key, c.Rate)
	}},
	{opSet, 4, wild, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		return done, h.rate.SetRate(ctx, h.configOf(c))
	}},
	{opRenew, 2, wild, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		_, err := h.rate.UpdateRate(ctx, h.configOf(c))
		return done, err
	}},
	{opExpire, 3, wild, func(ctx context.Context, _ *party, h *handle, c *call) (answer, error) {
		_, err := h.rate.Expire(ctx, time.Duration(c.Permits)*200*time.Millisecond)
		return done, err
	}},
	{opClear, 3, wild, func(ctx context.Context, _ *party, h *handle, _ *call) (answer, error) {
		_, err := h.rate.ClearExpire(ctx)
		return done, err
	}},
	{opDelete, 3, wild, func(ctx context.Context, _ *party, h *handle, _ *call) (answer, error) {
		_, err := h.rate.Delete(ctx)
		return done, err
	}},
	{opRename, 3, wild, func(ctx context.Context, _ *party, h *handle, _ *call) (answer, error) {
		return done, h.rate.Rename(ctx, h.name+"2")
	}},
	{opMigrate, 2, wild, func(ctx context.Context, p *party, h *handle, _ *call) (answer, error) {
		_, err := p.client.Migrate(ctx, h.name)
		return done, err
	}},
	{opConfig, 2, waitable, func(ctx context.Context, _ *party, h *handle, _ *call) (answer, error) {
		_, err := h.rate.Config(ctx)
		return done, err
	}},
	{opTTL, 2, waitable, func(ctx context.Context, _ *party, h *handle, _ *call) (answer, error) {
		_, _, err := h.rate.TTL(ctx)
		return done, err
	}},
}

// configOf is the configuration that a call sets.
func (l *limiter) configOf(c *call) rratelimiter.Config {
	cfg := l.config
	cfg.Rate = c.Rate
	return cfg
}

// drawOperation draws a call that can be made on the limiter.
func drawOperation(draw *rand.Rand, l *limiter) operation {
	total := 0
	for _, op := range operations {
		if op.on(l) {
			total += op.weight
		}
	}
	at := draw.IntN(total)
	for _, op := range operations {
		if !op.on(l) {
			continue
		}
		if at -= op.weight; at < 0 {
			return op
		}
	}
	panic("unreachable")
}

// drawCall draws the figures of a call.
func drawCall(draw *rand.Rand, op operation, l *limiter) call {
	c := call{Op: op.name, Limiters: []string{l.name}}
	switch op.name {
	case opTry, opTake, opUpTo, opPeek, opWait, opAcquire, opAll, opExpire:
		c.Permits = 1 + draw.Int64N(3)
		if draw.IntN(8) == 0 {
			c.Permits += draw.Int64N(max(1, l.config.Rate/2))
		}
	case opUpdate, opSetKeep, opTrySet, opSet, opRenew, opThreshold:
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
