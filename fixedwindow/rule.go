package fixedwindow

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keyed"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// rule decides about keys by one Config.
type rule struct {
	cfg   Config
	clock clock // of the Calendar
	table *keyed.Queues
}

// newRule returns the rule of a Config; err is what is wrong with it.
func newRule(client *rratelimiter.Client, cfg Config, err error, opts []rratelimiter.LimiterOption) *rule {
	r := &rule{cfg: cfg, clock: clock{calendar: cfg.Calendar}}
	r.table = keyed.New(client, keyed.Rule{
		Package: "fixedwindow", Err: err, Most: MaxLimit, Limit: cfg.Limit,
		Local: r.local, Ask: r.ask,
	}, opts)
	return r
}

// window returns the window's length; with a Calendar that of the current window.
func (r *rule) window() time.Duration {
	if !r.calendar() {
		return r.cfg.Window
	}
	begin, end := r.clock.window()
	return end.Sub(begin)
}

// calendar reports whether the windows are those of a calendar.
func (r *rule) calendar() bool { return r.cfg.Calendar.loc != nil }

// local returns the rule for a local limiter.
func (r *rule) local() local.Rule {
	l := local.Rule{Permits: r.cfg.Limit, Window: r.window()}
	if r.calendar() {
		_, l.Until = r.clock.window()
	}
	return l
}

// ask returns the call that decides a batch.
func (r *rule) ask(key string, b *lane.Batch) *keyed.Try {
	keys := script.KeysOf(key)
	q := &keyed.Try{Read: func(reply any, err error) (lane.Outcome, error) { return r.read(keys, reply, err) }}
	q.Script, q.Keys = lua.FixedWindow, keys
	most := script.Number(r.cfg.Limit)
	if !r.calendar() {
		q.Args = script.Constant(b.Args([]any{most, r.cfg.Window.Milliseconds()}))
		return q
	}
	q.Args = script.ArgumentsFunc(func(all []any, a script.Attempt) []any {
		if a.Token != "" {
			r.clock.hear(a.Token)
		}
		return b.Args(append(all, most, r.clock.windows().text))
	})
	return q
}

func (r *rule) read(keys *script.Keys, reply any, err error) (lane.Outcome, error) {
	if err != nil {
		return lane.Outcome{}, explain(err, keys)
	}
	v, end, err := keyed.Parse(reply)
	var window any = r.cfg.Window.Milliseconds()
	if r.calendar() {
		window = ""
	}
	answered := time.Now()
	v.GiveBack = func(ctx context.Context, permits int64) error {
		if time.Since(answered) >= v.Reset {
			// If the server's clock has gone back, a later window can have the same end.
			return nil
		}
		_, err := r.table.Lanes.Once(ctx, lua.FixedWindowSettle, keys, permits, end, window)
		return explain(err, keys)
	}
	v.Charge = func(ctx context.Context, more int64) error { return v.GiveBack(ctx, -more) }
	return v, err
}

func explain(err error, keys *script.Keys) error {
	return script.Explain(err, keys.Names(), "the count of a fixed window, a string", "")
}
