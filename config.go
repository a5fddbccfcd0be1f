package rratelimiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// RateType says which clients share a limiter's permits.
type RateType int

const (
	// Overall: all clients together. Redisson's RateType.OVERALL.
	Overall RateType = iota
	// PerClient: each client has the whole rate for itself. Redisson's RateType.PER_CLIENT.
	// A client is a Redisson instance in Java, and a Client here (see WithClientID).
	PerClient
)

// String returns Redisson's name of the type.
func (t RateType) String() string {
	switch t {
	case Overall:
		return "OVERALL"
	case PerClient:
		return "PER_CLIENT"
	}
	return fmt.Sprintf("RateType(%d)", int(t))
}

// MaxRate is the highest rate a limiter can count exactly: Lua numbers are doubles.
const MaxRate = 1<<53 - 1

// MaxPermits is the most permits that one request can ask for: Redisson packs a grant's permits in 32 bits.
const MaxPermits = 1<<32 - 1

// Config is the rate of a limiter: in any span of Interval at most Rate permits are granted.
type Config struct {
	// Type says who shares the permits. The zero value is Overall.
	Type RateType

	// Rate is how many permits an interval has: 1 to MaxRate.
	Rate int64

	// Interval is the length of the sliding window, a whole number of milliseconds, at least 1.
	Interval time.Duration

	// KeepAlive deletes the limiter, configuration included, if it got no request for
	// permits for this long. Callers that wait ask again in time to keep it. A whole
	// number of milliseconds, at least Interval; 0 keeps the limiter forever.
	KeepAlive time.Duration
}

// PerSecond returns the Config of rate permits a second, shared by all clients.
func PerSecond(rate int64) Config { return Config{Rate: rate, Interval: time.Second} }

// PerMinute returns the Config of rate permits a minute, shared by all clients.
func PerMinute(rate int64) Config { return Config{Rate: rate, Interval: time.Minute} }

// PerHour returns the Config of rate permits an hour, shared by all clients.
func PerHour(rate int64) Config { return Config{Rate: rate, Interval: time.Hour} }

// PerDay returns the Config of rate permits in 24 hours, shared by all clients.
func PerDay(rate int64) Config { return Config{Rate: rate, Interval: 24 * time.Hour} }

func (c Config) validate() error {
	switch {
	case c.Type != Overall && c.Type != PerClient:
		return fmt.Errorf("%w: type %d is neither Overall nor PerClient", ErrInvalidConfig, int(c.Type))
	case c.Rate < 1 || c.Rate > MaxRate:
		return fmt.Errorf("%w: rate %d is not between 1 and %d", ErrInvalidConfig, c.Rate, int64(MaxRate))
	case c.Interval < time.Millisecond || c.Interval%time.Millisecond != 0:
		return fmt.Errorf("%w: interval %v is not a whole number of milliseconds, at least 1", ErrInvalidConfig, c.Interval)
	case c.KeepAlive < 0 || c.KeepAlive%time.Millisecond != 0:
		return fmt.Errorf("%w: keep-alive time %v is not a whole number of milliseconds", ErrInvalidConfig, c.KeepAlive)
	case c.KeepAlive != 0 && c.KeepAlive < c.Interval:
		return fmt.Errorf("%w: keep-alive time %v is shorter than the interval %v", ErrInvalidConfig, c.KeepAlive, c.Interval)
	}
	return nil
}

// RateOption configures SetRate and UpdateRate.
type RateOption func(*rateOptions)

type rateOptions struct {
	keepState bool
	span      time.Duration
	spanErr   error
}

// KeepState keeps the permits in use counted when the rate changes: they come back one (new) interval
// after they were granted. Without it, and after a change of type, the limiter starts full. Beside
// Redissons before 3.13.3 the call returns ErrUnsupported.
func KeepState() RateOption {
	return func(o *rateOptions) { o.keepState = true }
}

// For sets the rate for d, by the server's clock, which is at least a millisecond and rounded down to whole ones. Then the
// limiter goes back by itself to the rate that it has now, or to the handle's default if it has none; without either SetRate
// returns ErrNotInitialized. Permits in use stay counted both times, as with KeepState, and the type must be the limiter's.
// Another override replaces the first, and goes back to the same rate; any other change of the rate ends it for good.
//
// Unused, the limiter lives until the override has ended; then its own keep-alive time counts again, whatever cfg.KeepAlive.
// Redissons see the override's rate like any other: if only they use the limiter when it ends, they keep it until a Client
// asks. Redissons before 3.13.3 can't read it: beside these SetRate returns ErrUnsupported, if WithRedissonVersion names them or
// they have lately taken permits.
func For(d time.Duration) RateOption {
	return func(o *rateOptions) {
		o.span = d.Truncate(time.Millisecond)
		err := invalid(d < time.Millisecond || d > engine.MaxOverride, "For: %v is not between 1ms and %v", d, engine.MaxOverride)
		o.spanErr = cmp.Or(o.spanErr, err)
	}
}

// Override is a rate that [For] has set for a while.
type Override struct {
	// Until is when it ends, by the server's clock.
	Until time.Time

	// Then is the rate that comes back.
	Then Config
}

// Override returns until when the limiter's rate holds, and what comes back then. It reports false if the rate has no end.
// The error is ErrNotInitialized if the limiter has no rate.
func (l *RateLimiter) Override(ctx context.Context) (o Override, overridden bool, err error) {
	_, until, then, err := l.client.engine.Override(ctx, &l.facts)
	if err != nil || until.IsZero() {
		return Override{}, false, l.fail("Override", err)
	}
	return Override{until, configOf(then)}, true, nil
}

func configOf(r limit.Rate) Config {
	cfg := Config{Rate: r.Permits, Interval: r.Interval, KeepAlive: r.KeepAlive}
	if r.PerClient {
		cfg.Type = PerClient
	}
	return cfg
}

// rate is the rate as observers receive it.
func (c Config) rate() limit.Rate {
	return limit.Rate{Permits: c.Rate, Interval: c.Interval, KeepAlive: c.KeepAlive, PerClient: c.Type == PerClient}
}

// TrySetRate gives the limiter a rate unless it has one, and reports whether it did. If only its
// configuration was lost, permits in use stay counted.
func (l *RateLimiter) TrySetRate(ctx context.Context, cfg Config) (bool, error) {
	return l.setRate(ctx, "TrySetRate", cfg, "new", nil)
}

// SetRate sets the limiter's rate, whether or not it had one. The limiter starts full, unless KeepState keeps
// the permits in use counted. cfg.KeepAlive replaces a time to live that the limiter had. If its answer is
// lost, SetRate is not repeated and returns ErrUnknownOutcome, as all changes do.
func (l *RateLimiter) SetRate(ctx context.Context, cfg Config, opts ...RateOption) error {
	_, err := l.setRate(ctx, "SetRate", cfg, 0, opts)
	return err
}

// UpdateRate is SetRate for a limiter that has a rate: if it has none, it changes nothing and returns false.
func (l *RateLimiter) UpdateRate(ctx context.Context, cfg Config, opts ...RateOption) (bool, error) {
	return l.setRate(ctx, "UpdateRate", cfg, 1, opts)
}

// setRate sets a rate: with "new" that of a limiter that has none, with 1 that of one that has.
func (l *RateLimiter) setRate(ctx context.Context, op string, cfg Config, what any, opts []RateOption) (bool, error) {
	o := chosen(opts)
	var keep any = o.keepState || o.span > 0
	if what == "new" {
		keep = l.client.rules.Keep()
	}
	if o.span > 0 {
		cfg.KeepAlive = 0 // what comes back has its own
	}
	err := cmp.Or(cfg.validate(), o.spanErr)
	if err == nil && keep == true && l.facts.Err == nil && l.client.rules.KeepsNoMembers() {
		err = l.client.rules.Unsupported("KeepState and For")
	}
	updates := what == 1
	if o.span > 0 {
		fallback := ""
		if !updates {
			fallback = l.client.engine.Fallback(&l.facts)
		}
		what = fmt.Sprintf("for %d %s", o.span.Milliseconds(), fallback)
	}
	n, err := l.changed(ctx, err, lua.SetRate, script.Paged(append(engine.RateWords(cfg.rate()), keep, what)))
	if updates && errors.Is(err, ErrNotInitialized) {
		return false, nil
	}
	switch n {
	case -1:
		err = fmt.Errorf("%w: For: the limiter is not of type %v", ErrInvalidConfig, cfg.Type)
	case -2:
		err = fmt.Errorf("%w: For: a Redisson before 3.13.3 uses the limiter, and can't read such a rate", ErrUnsupported)
	}
	return n > 0, l.fail(op, err)
}

// Config returns the limiter's rate, or ErrNotInitialized if it has none. While that is an override, KeepAlive is the one that
// comes back: see [RateLimiter.Override].
func (l *RateLimiter) Config(ctx context.Context) (Config, error) {
	found, err := l.client.engine.Rate(ctx, &l.facts)
	return configOf(found), l.fail("Config", err)
}
