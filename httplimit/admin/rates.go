package admin

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/limit"
)

// rate is a rratelimiter.Config in JSON, as PUT takes it too.
type rate struct {
	Type      string `json:"type"`
	Rate      int64  `json:"rate"`
	Interval  string `json:"interval"`
	KeepAlive string `json:"keepAlive"`
}

func rateOf(cfg rratelimiter.Config) *rate {
	return &rate{cfg.Type.String(), cfg.Rate, cfg.Interval.String(), cfg.KeepAlive.String()}
}

// limiter returns the RateLimiter that the request names, if it is one of ours.
func (c *call) limiter() (*rratelimiter.RateLimiter, error) {
	name := c.asked.Limiter
	ours := slices.Contains(c.cfg.RateLimiters, name)
	for _, prefix := range c.cfg.Prefixes {
		if ours || len(name) <= len(prefix) || !strings.HasPrefix(name, prefix) {
			continue
		}
		if other := redisson.Other(c.mapped(prefix), c.mapped(name)); other != "" {
			return nil, httpjson.BadRequest("the RateLimiter would share Redis keys with %q", other)
		}
		ours = true
	}
	if !ours {
		return nil, httpjson.Refuse(http.StatusNotFound, "no RateLimiter of this name is offered here")
	}
	return c.cfg.Client.RateLimiter(name), nil
}

// mapped returns what the Client's name mapper makes of a name.
func (c *call) mapped(name string) string {
	behind, _ := door.Behind[engine.Behind](c.cfg.Client.RateLimiter(name))
	return behind.Limiter.Config
}

type listedRate struct {
	Name  string `json:"name"`
	Rate  *rate  `json:"rate,omitempty"`  // if it has one
	Error string `json:"error,omitempty"` // if it is corrupt
}

type listed struct {
	RateLimiters []listedRate `json:"rateLimiters"`
	Prefixes     []string     `json:"prefixes"`
	SlidingLogs  []string     `json:"slidingLogs"`
}

func (c *call) list() error {
	all := listed{RateLimiters: []listedRate{}, Prefixes: append([]string{}, c.cfg.Prefixes...), SlidingLogs: []string{}}
	for _, name := range c.cfg.RateLimiters {
		entry := listedRate{Name: name}
		cfg, err := c.cfg.Client.RateLimiter(name).Config(c.r.Context())
		switch {
		case err == nil:
			entry.Rate = rateOf(cfg)
		case errors.Is(err, limit.ErrCorrupt):
			entry.Error = err.Error()
		case !errors.Is(err, rratelimiter.ErrNotInitialized):
			return err
		}
		all.RateLimiters = append(all.RateLimiters, entry)
	}
	for name := range c.cfg.SlidingLogs {
		all.SlidingLogs = append(all.SlidingLogs, name)
	}
	slices.Sort(all.SlidingLogs)
	return c.ok(all)
}

func (c *call) showRate(l *rratelimiter.RateLimiter) error {
	cfg, err := l.Config(c.r.Context())
	if err != nil {
		return err
	}
	return c.ok(rateOf(cfg))
}

// putRate gives a limiter a whole new rate, whether it had one or not.
func (c *call) putRate(l *rratelimiter.RateLimiter) error {
	change, err := c.readRate()
	if err != nil {
		return err
	}
	if !change.hasRate || !change.hasInterval {
		return httpjson.BadRequest("a rate to PUT has rate and interval; PATCH takes less")
	}
	var cfg rratelimiter.Config
	if err := change.apply(&cfg); err != nil {
		return err
	}
	end, err := c.begin()
	if err != nil {
		return err
	}
	defer end()
	old := slog.String("before", "none")
	before, err := l.Config(c.r.Context())
	switch {
	case err == nil:
		old = rateAttr("before", before)
	case errors.Is(err, limit.ErrCorrupt):
		old = slog.Any("before", err) // setting a rate cures it
	case !errors.Is(err, rratelimiter.ErrNotInitialized):
		return err
	}
	err = l.SetRate(c.r.Context(), cfg, change.options()...)
	return c.changedRate(old, cfg, change.keepState, err)
}

// patchRate changes the given fields of a limiter's rate, and keeps the rest.
func (c *call) patchRate(l *rratelimiter.RateLimiter) error {
	change, err := c.readRate()
	if err != nil {
		return err
	}
	end, err := c.begin()
	if err != nil {
		return err
	}
	defer end()
	before, err := l.Config(c.r.Context())
	if err != nil {
		return err
	}
	cfg := before
	if err := change.apply(&cfg); err != nil {
		return err
	}
	set, err := l.UpdateRate(c.r.Context(), cfg, change.options()...)
	if err == nil && !set {
		return rratelimiter.ErrNotInitialized // it went meanwhile
	}
	return c.changedRate(rateAttr("before", before), cfg, change.keepState, err)
}

func (c *call) changedRate(before slog.Attr, cfg rratelimiter.Config, keepState bool, err error) error {
	if err := c.changed(before, rateAttr("after", cfg), err, slog.Bool("keepState", keepState)); err != nil {
		return err
	}
	return c.ok(rateOf(cfg))
}

func rateAttr(key string, cfg rratelimiter.Config) slog.Attr {
	return slog.GroupAttrs(key, slog.String("type", cfg.Type.String()), slog.Int64("rate", cfg.Rate),
		slog.Duration("interval", cfg.Interval), slog.Duration("keepAlive", cfg.KeepAlive))
}

// rateChange is the body of PUT and PATCH.
type rateChange struct {
	rratelimiter.Config

	hasType, hasRate, hasInterval, hasKeepAlive, keepState bool
}

func (c *call) readRate() (rateChange, error) {
	var change rateChange
	f, err := c.body()
	if err != nil {
		return change, err
	}
	_, change.hasType = f["type"]
	if err := f.rateType("type", &change.Type); err != nil {
		return change, err
	}
	if change.hasRate, err = f.integer("rate", 1, rratelimiter.MaxRate, &change.Rate); err != nil {
		return change, err
	}
	if change.hasInterval, err = f.duration("interval", time.Millisecond, &change.Interval); err != nil {
		return change, err
	}
	if change.hasKeepAlive, err = f.duration("keepAlive", 0, &change.KeepAlive); err != nil {
		return change, err
	}
	if err := f.boolean("keepState", &change.keepState); err != nil {
		return change, err
	}
	if err := f.end(); err != nil {
		return change, err
	}
	if !change.hasType && !change.hasRate && !change.hasInterval && !change.hasKeepAlive {
		return change, httpjson.BadRequest("the body changes nothing")
	}
	return change, nil
}

// apply changes cfg, and refuses what can't go together.
func (r *rateChange) apply(cfg *rratelimiter.Config) error {
	if r.hasType {
		cfg.Type = r.Type
	}
	if r.hasRate {
		cfg.Rate = r.Rate
	}
	if r.hasInterval {
		if cfg.KeepAlive > 0 && cfg.KeepAlive == cfg.Interval {
			cfg.KeepAlive = r.Interval // as Keyed's limiters have it
		}
		cfg.Interval = r.Interval
	}
	if r.hasKeepAlive {
		cfg.KeepAlive = r.KeepAlive
	}
	if cfg.KeepAlive != 0 && cfg.KeepAlive < cfg.Interval {
		return httpjson.BadRequest("keepAlive %v is shorter than interval %v", cfg.KeepAlive, cfg.Interval)
	}
	return nil
}

func (r *rateChange) options() []rratelimiter.RateOption {
	if r.keepState {
		return []rratelimiter.RateOption{rratelimiter.KeepState()}
	}
	return nil
}
