package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// found reads a limiter for a plan, and of the clients the one with that id, if any.
func (c *call) found(ctx context.Context, r *request, client string) (*look.Inspection, error) {
	f, err := look.Inspect(ctx, c.cfg.Redis, r.name, func(context.Context) ([]string, error) {
		if client == "" {
			return nil, nil
		}
		return []string{client}, nil
	})
	switch {
	case err != nil:
		return nil, err
	case !f.Exists:
		return nil, rratelimiter.ErrNotInitialized
	case f.Foreign:
		return nil, httpjson.Refuse(http.StatusConflict, "this key holds something else, not a limiter: it is not changed here")
	}
	return f, nil
}

// stateText is what of a limiter a change depends on. Permits in use change all the time, and
// are left out.
func stateText(f *look.Inspection) string {
	if f.Rate == nil {
		return "unreadable"
	}
	return fmt.Sprint(*f.Rate, *f.IntervalMS, *f.Type, *f.KeepAliveMS, f.TTLMS != nil)
}

const (
	factRate    = "Rate"
	factOrigin  = "Origin"
	factType    = "Shared by"
	factAlive   = "Deleted when unused for"
	factExpires = "Expires in"
	factInUse   = "Permits in use"
	never       = "never"
)

// sharedBy is who shares the permits, in the page's words.
func sharedBy(t rratelimiter.RateType) string {
	if t == rratelimiter.PerClient {
		return "each client for itself"
	}
	return "all clients together"
}

func orNever(ms int64) string {
	if ms == 0 {
		return never
	}
	return words.Millis(ms)
}

func ttlText(ms *int64) string {
	if ms == nil {
		return never
	}
	return words.Soon(*ms)
}

// factsOf are the facts of a limiter that rates change.
func factsOf(cfg rratelimiter.Config) []fact {
	return []fact{
		{factRate, words.ShortRate(cfg.Rate, cfg.Interval.Milliseconds())},
		{factType, sharedBy(cfg.Type)},
		{factAlive, orNever(cfg.KeepAlive.Milliseconds())},
	}
}

// configOf returns the limiter's rate, false if it can't be read.
func configOf(f *look.Inspection) (cfg rratelimiter.Config, ok bool) {
	if f.Rate == nil || *f.IntervalMS > maxMillis || *f.KeepAliveMS > maxMillis {
		return cfg, false
	}
	kind, _ := typeOf(*f.Type)
	return rratelimiter.Config{
		Type: kind, Rate: *f.Rate, Interval: time.Duration(*f.IntervalMS) * time.Millisecond,
		KeepAlive: time.Duration(*f.KeepAliveMS) * time.Millisecond,
	}, true
}

// inUse returns how many permits are in use, in words.
func inUse(f *look.Inspection) string {
	switch {
	case f.Rate == nil || slices.ContainsFunc(f.States, func(st look.State) bool { return st.Unreadable }):
		return "not known"
	case f.PerClient():
		return "each client's own"
	}
	return strconv.FormatInt(inUseNow(f), 10)
}

func inUseNow(f *look.Inspection) (n int64) {
	for i := range f.States {
		n += f.States[i].InUse
	}
	return n
}

// gone is the error of a change that found no limiter.
func gone(there bool, err error) error {
	if err == nil && !there {
		return httpjson.Refuse(http.StatusConflict, "the limiter was deleted meanwhile")
	}
	return err
}

func (c *call) planExpire(ctx context.Context, r *request) (*plan, error) {
	if r.TTLMS < 1 || r.TTLMS > maxMillis {
		return nil, httpjson.BadRequest("a time to live has at least 1 ms")
	}
	f, err := c.found(ctx, r, "")
	if err == nil {
		err = refuseKept(f)
	}
	if err != nil {
		return nil, err
	}
	p := &plan{
		name: r.name, state: stateText(f), before: []fact{{factExpires, ttlText(f.TTLMS)}},
		after: []fact{{factExpires, words.Millis(r.TTLMS)}},
	}
	p.do = func(ctx context.Context) error {
		return c.with(ctx, r.name, "", func(_ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return gone(l.Expire(ctx, time.Duration(r.TTLMS)*time.Millisecond))
		})
	}
	return p, nil
}

// refuseKept returns an error for a limiter whose next request would set its time to live itself.
func refuseKept(f *look.Inspection) error {
	if f.KeepAliveMS == nil || *f.KeepAliveMS == 0 {
		return nil
	}
	return httpjson.Refuse(http.StatusConflict, "the limiter is deleted when unused for %s, and its next request would set its time to live "+
		"back to that: first set its rate without that time", words.Millis(*f.KeepAliveMS))
}

func (c *call) planKeep(ctx context.Context, r *request) (*plan, error) {
	f, err := c.found(ctx, r, "")
	if err == nil {
		err = refuseKept(f)
	}
	if err != nil {
		return nil, err
	}
	if f.TTLMS == nil {
		return nil, httpjson.Refuse(http.StatusConflict, "the limiter has no time to live: nothing to clear")
	}
	return &plan{
		name: r.name, state: stateText(f), before: []fact{{factExpires, ttlText(f.TTLMS)}}, after: []fact{{factExpires, never}},
		do: func(ctx context.Context) error {
			return c.with(ctx, r.name, "", func(_ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
				return gone(l.ClearExpire(ctx))
			})
		},
	}, nil
}

func (c *call) planDelete(ctx context.Context, r *request) (*plan, error) {
	f, err := c.found(ctx, r, "")
	if err != nil {
		return nil, err
	}
	p := &plan{
		name: r.name, state: stateText(f), before: []fact{{"Limiter", "there"}, {factInUse, inUse(f)}},
		after:    []fact{{"Limiter", "deleted, with all it keeps"}, {factInUse, "forgotten"}},
		warnings: []string{"This can't be undone. Programs that give the limiter no rate of their own fail until it has one again."},
	}
	if cfg, ok := configOf(f); ok {
		p.before = append(factsOf(cfg), p.before[1])
		if cfg.Type == rratelimiter.PerClient {
			p.after[1][1] = "what clients keep of their own goes when it expires"
		}
	}
	p.do = func(ctx context.Context) error {
		return c.with(ctx, r.name, "", func(_ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return gone(l.Delete(ctx))
		})
	}
	return p, nil
}

func (c *call) planRelease(ctx context.Context, r *request) (*plan, error) {
	if r.Permits < 1 || r.Permits > rratelimiter.MaxRate {
		return nil, httpjson.BadRequest("permits are 1 to %d", int64(rratelimiter.MaxRate))
	}
	f, err := c.found(ctx, r, r.client)
	if err != nil {
		return nil, err
	}
	if len(f.States) == 0 {
		return nil, httpjson.BadRequest("each client has permits of its own: choose the client whose permits to release")
	}
	used := f.States[0].InUse
	p := &plan{
		name: r.name, state: stateText(f), before: []fact{{factInUse, strconv.FormatInt(used, 10)}},
		after:    []fact{{factInUse, "about " + strconv.FormatInt(max(used-r.Permits, 0), 10)}},
		warnings: []string{"Who holds them does not learn of it: more than the rate may be under way for an interval. Those granted last go first."},
	}
	if r.client != "" {
		who := fact{"Client", shown(r.client)}
		p.before, p.after = append(p.before, who), append(p.after, who)
	}
	p.do = func(ctx context.Context) error {
		return c.with(ctx, r.name, r.client, func(_ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return l.Release(ctx, r.Permits)
		})
	}
	return p, nil
}

func (c *call) planMigrate(ctx context.Context, r *request) (*plan, error) {
	f, err := c.found(ctx, r, "")
	if err != nil {
		return nil, err
	}
	own := f.PerClient()
	p := &plan{
		name: r.name, state: stateText(f), before: []fact{{"Members", membersText(f, own)}},
		after:    []fact{{"Members", "members of older layouts get the layout of Redisson 3.21 and newer, for the same permits at the same times"}},
		warnings: []string{"Redissons before 3.17 can't read what it writes. This can't be undone."},
	}
	p.do = func(ctx context.Context) error {
		ids := []string{""}
		if own {
			if ids, err = look.FindClients(ctx, c.cfg.Redis, r.name); err != nil {
				return err
			}
		}
		var errs []error
		for _, id := range ids {
			errs = append(errs, c.with(ctx, r.name, id, func(_ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
				_, err := l.Migrate(ctx)
				return err
			}))
		}
		return errors.Join(errs...)
	}
	return p, nil
}

// membersText counts the members of each layout.
func membersText(f *look.Inspection, own bool) string {
	if own {
		return "of each client, in whatever layout"
	}
	count := map[string]int64{}
	for i := range f.States {
		for p := range f.States[i].Permits {
			count[f.States[i].Permits[p].Layout]++
		}
	}
	var texts []string
	for _, layout := range []string{"B", "C", "D1", "D2", "unknown"} {
		if n := count[layout]; n > 0 {
			texts = append(texts, strconv.FormatInt(n, 10)+" of layout "+layout)
		}
	}
	return cmp.Or(strings.Join(texts, ", "), "none")
}
