package rratelimiter

import (
	"context"
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

type rateOptions struct{ keepState bool }

// KeepState keeps the permits in use counted when the rate changes: they come back one (new) interval
// after they were granted. Without it, and after a change of type, the limiter starts full. Beside
// Redissons before 3.13.3 the call returns ErrUnsupported.
func KeepState() RateOption {
	return func(o *rateOptions) { o.keepState = true }
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
	var keep any = o.keepState
	if what == "new" {
		keep = l.client.rules.Keep()
	}
	err := cfg.validate()
	if err == nil && o.keepState && l.facts.Err == nil && l.client.rules.KeepsNoMembers() {
		err = l.client.rules.Unsupported("KeepState")
	}
	return l.change(ctx, op, err, lua.SetRate, script.Paged(append(engine.RateWords(cfg.rate()), keep, what)))
}

// Config returns the limiter's rate, or ErrNotInitialized if it has none.
func (l *RateLimiter) Config(ctx context.Context) (Config, error) {
	found, err := l.client.engine.Rate(ctx, &l.facts)
	cfg := Config{Rate: found.Permits, Interval: found.Interval, KeepAlive: found.KeepAlive}
	if found.PerClient {
		cfg.Type = PerClient
	}
	return cfg, l.fail("Config", err)
}
