package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/inspect/rates"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

func (c *call) planRate(ctx context.Context, r *request) (*plan, error) {
	if err := r.checkRate(); err != nil {
		return nil, err
	}
	f, err := c.found(ctx, r, "")
	if errors.Is(err, rratelimiter.ErrNotInitialized) && r.Create {
		return c.newRate(r)
	}
	if err != nil {
		return nil, err
	}
	now, readable := configOf(f)
	if !readable && (r.Rate == nil || r.IntervalMS == nil) {
		return nil, httpjson.Refuse(http.StatusConflict, "the rate can't be read: give rate and interval_ms")
	}
	cfg, err := r.config(now)
	if err != nil {
		return nil, err
	}
	if r.ForMS != nil {
		return c.rateFor(r.name, f, cfg, time.Duration(*r.ForMS)*time.Millisecond)
	}
	return c.rateTo(r.name, f, cfg, r.KeepState == nil || *r.KeepState)
}

// rateFor plans a rate for a while. It needs no undo: that is its end, or the rate before.
func (c *call) rateFor(name string, f *look.Inspection, cfg rratelimiter.Config, d time.Duration) (*plan, error) {
	old, readable := configOf(f)
	if !readable {
		return nil, httpjson.Refuse(http.StatusConflict, "the rate can't be read: there is nothing to go back to")
	}
	then := words.ShortRate(old.Rate, old.Interval.Milliseconds())
	if f.Ends != nil {
		then = words.ShortRate(f.Ends.Rate, f.Ends.IntervalMS)
	}
	return &plan{
		name: name, state: stateText(f) + string(f.Origin),
		before: []fact{{factRate, words.ShortRate(old.Rate, old.Interval.Milliseconds())}, {factOrigin, string(f.Origin)}, {factInUse, inUse(f)}},
		after: []fact{
			{factRate, words.ShortRate(cfg.Rate, cfg.Interval.Milliseconds()) + " for " + words.Duration(d) + ", then " + then},
			{factOrigin, string(look.Override)}, {factInUse, inUse(f)},
		},
		do: func(ctx context.Context) error {
			return c.with(ctx, name, "", func(_ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
				set, err := l.UpdateRate(ctx, cfg, rratelimiter.For(d))
				return gone(set, err)
			})
		},
	}, nil
}

// newRate plans a rate for a limiter that is not there.
func (c *call) newRate(r *request) (*plan, error) {
	if other := redisson.Other("", r.name); other != "" {
		return nil, httpjson.BadRequest("the limiter would share Redis keys with %q", shown(other))
	}
	cfg, err := r.config(rratelimiter.Config{})
	if err != nil {
		return nil, err
	}
	return &plan{
		name: r.name, before: []fact{{"Limiter", "none"}}, after: append(factsOf(cfg), fact{factOrigin, string(look.Override)}),
		do: func(ctx context.Context) error {
			return c.with(ctx, r.name, "", func(_ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
				set, err := l.TrySetRate(ctx, cfg)
				if err == nil && !set {
					return httpjson.Refuse(http.StatusConflict, "the limiter got a rate meanwhile")
				}
				return err
			})
		},
	}, nil
}

// rateTo plans a rate for a limiter that is there.
func (c *call) rateTo(name string, f *look.Inspection, cfg rratelimiter.Config, keepState bool) (*plan, error) {
	p := &plan{name: name, after: factsOf(cfg), state: stateText(f)}
	old, readable := configOf(f)
	if readable {
		p.before = append(factsOf(old), fact{factOrigin, string(f.Origin)})
		p.after = append(p.after, fact{factOrigin, string(look.Override)})
		ends := f.TTLMS != nil && old.KeepAlive == 0
		p.undo = &undo{before: old, after: cfg, origin: f.Origin, keepState: keepState, expired: ends, override: f.Ends != nil}
	} else {
		p.before = []fact{{factRate, "can't be read"}}
	}
	used := inUse(f)
	p.before = append(p.before, fact{factInUse, used})
	switch {
	case !readable, old.Type != cfg.Type, !keepState && cfg.Type == rratelimiter.Overall: // clients keep their own
		used = "forgotten: the limiter starts full"
	case old.Interval != cfg.Interval:
		used += ", back after the new interval"
	}
	p.after = append(p.after, fact{factInUse, used})
	if readable && old.Type != cfg.Type && keepState {
		p.warnings = append(p.warnings, "A change of type always starts full.")
	}
	if readable && keepState && old.Type == cfg.Type && cfg.Type == rratelimiter.Overall {
		if n := inUseNow(f); n > cfg.Rate {
			p.warnings = append(p.warnings, fmt.Sprintf("%s are in use, more than the new rate: no one gets a permit until %d of them are back.",
				words.Plural(n, "permit"), n-cfg.Rate+1))
		}
	}
	if f.Ends != nil {
		p.warnings = append(p.warnings, fmt.Sprintf("The rate now has an end, after which %s would come back: the new one stays.",
			words.ShortRate(f.Ends.Rate, f.Ends.IntervalMS)))
	}
	if f.TTLMS != nil && cfg.KeepAlive == 0 {
		p.before = append(p.before, fact{factExpires, ttlText(f.TTLMS)})
		p.after = append(p.after, fact{factExpires, never})
	}
	p.do = func(ctx context.Context) error {
		var opts []rratelimiter.RateOption
		if keepState && readable {
			opts = append(opts, rratelimiter.KeepState())
		}
		return c.with(ctx, name, "", func(_ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			if !readable {
				return l.SetRate(ctx, cfg)
			}
			set, err := l.UpdateRate(ctx, cfg, opts...)
			return gone(set, err)
		})
	}
	return p, nil
}

func (c *call) planUndo(ctx context.Context, r *request) (*plan, error) {
	name, how, err := c.audit.undoable(r.entry)
	if err != nil {
		return nil, err
	}
	r.name = name
	f, err := c.found(ctx, r, "")
	if err != nil {
		return nil, err
	}
	if now, ok := configOf(f); !ok || now != how.after {
		return nil, httpjson.Refuse(http.StatusConflict, "the rate was changed again since: there is nothing to undo")
	}
	p, err := c.rateTo(name, f, how.before, how.keepState)
	if err != nil {
		return nil, err
	}
	p.undoes = r.entry
	if how.origin == look.Default || how.origin == look.TakenBack {
		c.backToDefault(p)
	}
	if how.expired {
		p.warnings = append(p.warnings, "The time to live that it had before that change does not come back.")
	}
	if how.override {
		p.warnings = append(p.warnings, "That rate had an end, which does not come back: it stays until it is changed.")
	}
	if !how.keepState {
		p.warnings = append(p.warnings, "The permits that were in use before that change are not known any more.")
	}
	return p, nil
}

// backToDefault makes a plan for a rate one that leaves it a default, as it was.
func (c *call) backToDefault(p *plan) {
	for i := range p.after {
		if p.after[i][0] == factOrigin {
			p.after[i][1] = string(look.TakenBack)
		}
	}
	set := p.do
	p.do = func(ctx context.Context) error {
		if err := set(ctx); err != nil {
			return err
		}
		_, err := rates.UseDefault(ctx, c.cfg.Redis, p.name, c.cfg.callTimeout())
		return err
	}
}

func (c *call) planDefault(ctx context.Context, r *request) (*plan, error) {
	f, err := c.found(ctx, r, "")
	if err != nil {
		return nil, err
	}
	now, readable := configOf(f)
	switch {
	case !readable:
		return nil, httpjson.Refuse(http.StatusConflict, "the rate can't be read: give the limiter one")
	case f.Origin == look.Default, f.Origin == look.TakenBack:
		return nil, httpjson.Refuse(http.StatusConflict, "the rate is a default already")
	}
	rate := words.ShortRate(now.Rate, now.Interval.Milliseconds())
	then := rate
	if f.Ends != nil {
		then = words.ShortRate(f.Ends.Rate, f.Ends.IntervalMS)
	}
	return &plan{
		name: r.name, state: stateText(f) + string(f.Origin),
		before: []fact{{factRate, rate}, {factOrigin, string(look.Override)}},
		after:  []fact{{factRate, then + ", until a program has another default"}, {factOrigin, string(look.TakenBack)}},
		do: func(ctx context.Context) error {
			_, err := rates.UseDefault(ctx, c.cfg.Redis, r.name, c.cfg.callTimeout())
			return err
		},
	}, nil
}
