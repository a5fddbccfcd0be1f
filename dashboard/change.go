package dashboard

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/limit"
)

// plan is a change that is ready to be made.
type plan struct {
	name     string
	before   []fact
	after    []fact
	warnings []string
	state    string // must still be the same, or the change is refused
	undo     *undo
	undoes   int64
	do       func(ctx context.Context) error
}

// expect is different for plans with another beginning or another result.
func (p *plan) expect(r *request) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %s", p.state, r))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// preview shows what a change would do, and changes nothing.
func (c *call) preview() error {
	r, err := c.request()
	if err != nil {
		return err
	}
	if r.verb == many {
		return c.previewMany(r)
	}
	ctx, cancel := c.cfg.bounded(c.r.Context())
	defer cancel()
	p, err := c.plan(ctx, r)
	if err != nil {
		return err
	}
	return c.ok(struct {
		Action   string   `json:"action"`
		Limiter  named    `json:"limiter"`
		Before   []fact   `json:"before"`
		After    []fact   `json:"after"`
		Warnings []string `json:"warnings"`
		Expect   string   `json:"expect"`
	}{r.verb, nameOf(p.name), p.before, p.after, append([]string{}, p.warnings...), p.expect(r)})
}

// change makes a change. If it says what the preview expects, all must still be as it was then.
func (c *call) change() error {
	r, err := c.request()
	if err != nil {
		return err
	}
	// A caller who goes away must not leave a change without its entry.
	ctx, cancel := c.cfg.bounded(context.WithoutCancel(c.r.Context()))
	defer cancel()
	end, err := begin(ctx, c.changing)
	if err != nil {
		return err
	}
	defer end()
	if r.verb == many {
		return c.changeMany(ctx, r)
	}
	p, err := c.plan(ctx, r)
	tried := false
	switch {
	case err != nil && r.name == "", badlyAsked(err):
		return err
	case err != nil:
		p = &plan{name: r.name}
	case r.Expect != "" && r.Expect != p.expect(r):
		err = errShownOtherwise
	default:
		err, tried = p.do(ctx), true
	}
	if tried && errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", limit.ErrUnknownOutcome, err)
	}
	told := c.enter(p, r.verb, err)
	if err != nil {
		return err
	}
	return c.ok(struct {
		Entry entry `json:"entry"`
	}{told})
}

// enter puts a change, or the try of one, into the list and the log.
func (c *call) enter(p *plan, action string, err error) entry {
	e := &entry{
		Who: c.who, Action: action, Limiter: nameOf(p.name), Before: p.before, After: p.after, Outcome: outcomeOf(err),
		name: p.name, undo: p.undo,
	}
	if err != nil {
		told, _ := problemOf(err)
		e.Error = told.Detail
	}
	told := c.audit.add(e, p.undoes)
	c.logChange(&told, err)
	return told
}

func outcomeOf(err error) string {
	if err == nil {
		return done
	}
	if errors.Is(err, limit.ErrUnknownOutcome) {
		return unknown
	}
	if p, _ := problemOf(err); p.Status < http.StatusInternalServerError {
		return refused
	}
	return failed
}

func (c *call) logChange(e *entry, err error) {
	group := func(name string, facts []fact) slog.Attr {
		attrs := make([]slog.Attr, len(facts))
		for i, f := range facts {
			attrs[i] = slog.String(f[0], f[1])
		}
		return slog.GroupAttrs(name, attrs...)
	}
	level, message := slog.LevelInfo, "limiter changed"
	attrs := []slog.Attr{slog.String("action", e.Action), slog.String("limiter", e.name), slog.String("outcome", e.Outcome),
		group("before", e.Before), group("after", e.After)}
	if err != nil {
		level, message = slog.LevelWarn, "limiter not changed"
		if e.Outcome == unknown {
			level, message = slog.LevelError, "limiter perhaps changed"
		}
		attrs = append(attrs, slog.Any("error", unquoted(err)))
	}
	c.log(level, message, attrs...)
}

// errShownOtherwise answers a change that is no longer what its preview showed.
var errShownOtherwise = httpjson.Refuse(http.StatusConflict, "this has changed since it was shown: look at it again")

// plan works out what a request would change, given what Redis holds now.
func (c *call) plan(ctx context.Context, r *request) (*plan, error) {
	return kinds[r.verb].plan(c, ctx, r)
}

// kind is a kind of change. Its verb is the end of the request's path.
type kind struct {
	plan   func(*call, context.Context, *request) (*plan, error)
	names  string // parameters of the query
	fields string // members of the body, beside expect
}

var kinds = map[string]kind{
	"rate":        {(*call).planRate, "name", "rate interval_ms type keep_alive_ms keep_state for_ms create"},
	"undo":        {(*call).planUndo, "entry", ""},
	"default":     {(*call).planDefault, "name", ""},
	"expire":      {(*call).planExpire, "name", "ttl_ms"},
	"keep":        {(*call).planKeep, "name", ""},
	"delete":      {(*call).planDelete, "name", ""},
	"release":     {(*call).planRelease, "name client?", "permits"},
	"migrate":     {(*call).planMigrate, "name", ""},
	"threshold":   {(*call).planThreshold, "hash key", "threshold"},
	"unthreshold": {(*call).planUnthreshold, "hash key", ""},
	many:          {nil, "search", "rate interval_ms"},
}

// with calls do with the limiter, by a Client of its own, which has an id if id is
// not "".
func (c *call) with(ctx context.Context, name, id string, do func(*rratelimiter.Client, *rratelimiter.RateLimiter) error) error {
	return c.by(ctx, id, func(client *rratelimiter.Client) error { return do(client, client.RateLimiter(name)) })
}

// by calls do with such a Client.
func (c *call) by(ctx context.Context, id string, do func(*rratelimiter.Client) error) error {
	opts := []rratelimiter.Option{rratelimiter.WithCallTimeout(c.cfg.callTimeout())}
	if id != "" {
		opts = append(opts, rratelimiter.WithClientID(id))
	}
	if c.cfg.RedissonVersion != "" {
		opts = append(opts, rratelimiter.WithRedissonVersion(c.cfg.RedissonVersion))
	}
	client := rratelimiter.New(c.cfg.Redis, opts...)
	// That it could not wait for all answers says nothing of the change.
	defer func() { _ = client.Close(ctx) }()
	return do(client)
}
