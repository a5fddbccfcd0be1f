// Package holders finds who has a limiter's permits in use, by the marks in the members.
package holders

import (
	"context"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

const (
	// maxMembers is how many members are looked at.
	maxMembers = 20_000

	// maxOwn is how many clients' own pairs are looked at.
	maxOwn = 100
)

// Holders are the clients that have permits of a limiter in use.
type Holders struct {
	Shares []Share
	Whole  bool // no client was left out
}

// Of returns who has permits of the limiter in use. If each client has permits of its
// own, these are the clients that have a name.
func Of(ctx context.Context, limiter *rratelimiter.RateLimiter) (Holders, error) {
	cfg, err := limiter.Config(ctx)
	if err != nil {
		return Holders{}, err
	}
	behind, _ := door.Behind[engine.Behind](limiter)
	e, l := behind.Engine, behind.Limiter
	names, err := known(ctx, e)
	if err != nil {
		return Holders{}, err
	}
	if cfg.Type == rratelimiter.PerClient {
		return ofOwn(ctx, e, l, names)
	}
	shares, whole, err := inUse(ctx, e, l.Keys(), names)
	return Holders{shares, whole}, err
}

// ofOwn is Of for a limiter in which each client has permits of its own.
func ofOwn(ctx context.Context, e *engine.Engine, l *engine.Limiter, names Names) (Holders, error) {
	own := make(map[string]bool)
	found := Holders{Shares: []Share{}}
	for _, c := range names.All() {
		if len(own) == maxOwn {
			break
		}
		if own[c.ID] {
			continue
		}
		own[c.ID] = true
		shares, _, err := inUse(ctx, e, script.KeysOf(redisson.KeysOf(l.Config, c.ID).List()...), names)
		if err != nil {
			return Holders{}, err
		}
		sum := Share{Kind: Named, Name: c.Name, Mark: c.Mark}
		for _, s := range shares {
			sum.Permits += s.Permits
		}
		if sum.Permits > 0 {
			found.Shares = append(found.Shares, sum)
		}
	}
	sortShares(found.Shares)
	return found, nil
}

// inUse adds up the members in use of a limiter's pair, the newest maxMembers of them,
// and reports whether these are all.
func inUse(ctx context.Context, e *engine.Engine, keys *script.Keys, names Names) (shares []Share, whole bool, err error) {
	members, whole, err := list(ctx, e, keys, maxMembers)
	if err != nil {
		return nil, false, err
	}
	tally, seen := NewTally(names), make(map[string]bool, len(members))
	for _, packed := range members {
		m, err := codec.Parse(packed)
		if err != nil {
			whole = false
			continue
		}
		if !seen[packed] {
			tally.Add(m)
		}
		seen[packed] = true
	}
	return tally.Shares(), whole, nil
}

// list returns the members in use, all or as many as are wanted.
func list(ctx context.Context, e *engine.Engine, keys *script.Keys, most int) (texts []string, whole bool, err error) {
	whole = true
	add := func(all []any) {
		for _, one := range all {
			if text, ok := one.(string); ok {
				texts = append(texts, text)
			}
		}
	}
	reply, err := e.Read(ctx, &engine.Limiter{}, script.Call{
		Script: lua.InUse, Keys: keys, Args: script.Paged{},
		Continued: func(_ string, rest []any) (more bool, err error) {
			add(rest)
			whole = len(texts) < most
			return whole, nil
		},
	})
	if last, ok := reply.([]any); ok && err == nil && whole && len(last) > 2 {
		add(last[2:])
	}
	return texts, whole, err
}
