package envoylimit

import (
	"context"
	"errors"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// counter is what a question is asked of.
type counter struct {
	outage.Asker

	key   string                    // as the Asker wants it
	log   *rratelimiter.RateLimiter // of a sliding log
	other other                     // of anything else
}

type settler = func(ctx context.Context, used int64, then func(error)) error

// otherKey is what limiters of fixed windows and buckets differ by.
type otherKey struct {
	algorithm algorithm
	window    time.Duration
	zone      string
	limit     int64
	burst     int64
	metric    string
}

// other is a limiter of fixed windows or buckets.
type other interface {
	Peek(ctx context.Context, key string, n int64) (limit.Decision, error)
}

// maxOthers is how many bytes they take at most, and otherSize about what one takes.
const maxOthers, otherSize = 16 << 20, 2 << 10

// counterOf returns the counter of a question.
func (s *Service) counterOf(q *question) counter {
	if q.algorithm == slidingLog {
		l, asker := s.logs.At(q.key, rratelimiter.Config{Rate: q.limit, Interval: q.window}, q.metric)
		return counter{Asker: asker, key: q.key, log: l}
	}
	k := otherKey{q.algorithm, q.window, "", q.limit, q.burst, q.metric}
	if q.calendar != nil {
		k.zone = q.calendar.String()
	}
	l, known := s.others.Get(k)
	if !known {
		l = s.others.Add(k, s.newOther(q), otherSize+len(q.metric), func(other) bool { return true })
	}
	of, _ := door.Behind[outage.Keyed](l)
	return counter{Asker: of.Asker(decide.Ask{Key: keyPrefix + q.key}), key: keyPrefix + q.key, other: l}
}

// peek returns what a request would get. One for 0 permits is not Granted if more is used than the limit.
func (c *counter) peek(ctx context.Context, permits int64) (limit.Decision, error) {
	if c.log != nil {
		return c.log.Peek(ctx, permits)
	}
	return c.other.Peek(ctx, c.key, permits)
}

// look returns what a question is answered by: what is free of the limit that the question is about.
func (c *counter) look(ctx context.Context) (limit.Decision, error) {
	if c.log == nil {
		return c.peek(ctx, 0)
	}
	behind, _ := door.Behind[engine.Behind](c.log)
	return behind.Engine.Look(ctx, behind.Limiter)
}

// release gives permits back. A counter that Redis does not have has none to give back.
func (c *counter) release(ctx context.Context, permits int64) error {
	if c.log != nil {
		if err := c.log.Release(ctx, permits); !errors.Is(err, limit.ErrNotInitialized) {
			return err
		}
		return nil
	}
	// Asked for nothing, the answer says which window it is, or how full the bucket.
	a, err := c.Ask(ctx, decide.Ask{Call: callName, Key: c.key, Reserve: true})
	if err != nil || a.Settle == nil {
		return err
	}
	return a.Settle(ctx, -permits, func(error) {})
}

// charge charges a sliding log, whether permits are free or not.
func (c *counter) charge(ctx context.Context, permits int64) error {
	behind, _ := door.Behind[engine.Behind](c.log)
	return behind.Engine.Charge(ctx, behind.Limiter, permits, func(error) {})
}

// waits returns after how long as much is granted again, 0 if that is not known, and all of it.
func (c *counter) waits(ctx context.Context, q *question) (retry, reset time.Duration) {
	d, err := c.peek(ctx, min(max(1, q.permits), q.most()))
	if err != nil {
		return 0, q.window
	}
	return d.RetryAfter, d.ResetAfter
}

// settler returns what settles what was reserved, perhaps by another program; nil if that can't be.
func (c *counter) settler(text []byte) settler {
	if c.log == nil || text == nil {
		return nil
	}
	behind, _ := door.Behind[engine.Behind](c.log)
	settle, err := behind.Engine.SettlerOf(behind.Limiter, text)
	if err != nil {
		return nil
	}
	return settle
}

func (s *Service) newOther(q *question) other {
	name := rratelimiter.WithName(q.metric)
	if q.algorithm == fixedWindow {
		cfg := fixedwindow.Config{Limit: q.limit}
		switch {
		case q.calendar == nil && q.window < time.Second:
			cfg.Window = q.window
		case q.calendar == nil:
			cfg.Calendar = fixedwindow.Aligned(q.window) // as envoyproxy/ratelimit has them
		case q.window == day:
			cfg.Calendar = fixedwindow.Daily(q.calendar)
		case q.window == 7*day:
			cfg.Calendar = fixedwindow.Weekly(q.calendar, time.Monday)
		default:
			cfg.Calendar = fixedwindow.Monthly(q.calendar)
		}
		return fixedwindow.New(s.client, cfg, name)
	}
	// A steady flow: as few tokens at a time as whole seconds allow.
	seconds := int64(q.window / time.Second)
	d := gcd(q.limit, seconds)
	return tokenbucket.New(s.client, tokenbucket.Config{
		Capacity: q.most(), Refill: q.limit / d, Interval: time.Duration(seconds/d) * time.Second,
	}, name)
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
