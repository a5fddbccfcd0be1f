package limitertest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Each runs test for each row, as a parallel subtest.
func Each[R any](t *testing.T, rows map[string]R, test func(t *testing.T, row R)) {
	t.Helper()
	Named(t, rows, func(t *testing.T, _ string, row R) { test(t, row) })
}

// Named is Each for a test that needs a row's name.
func Named[R any](t *testing.T, rows map[string]R, test func(t *testing.T, name string, row R)) {
	t.Helper()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, name, row)
		})
	}
}

// Bubbles is Each with a bubble for each row.
func Bubbles[R any](t *testing.T, rows map[string]R, test func(t *testing.T, row R)) {
	t.Helper()
	Each(t, rows, func(t *testing.T, row R) { synctest.Test(t, func(t *testing.T) { test(t, row) }) })
}

// Virtual is Each with a server by [redistest.Virtual] for each row.
func Virtual[R any](t *testing.T, rows map[string]R, test func(t *testing.T, rdb redistest.Client, row R)) {
	t.Helper()
	Each(t, rows, func(t *testing.T, row R) {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) { test(t, rdb, row) })
	})
}

// VirtualServer is Virtual on real servers.
func VirtualServer[R any](t *testing.T, rows map[string]R, test func(t *testing.T, rdb redistest.Client, row R)) {
	t.Helper()
	Each(t, rows, func(t *testing.T, row R) {
		redistest.VirtualServer(t, func(t *testing.T, rdb redistest.Client) { test(t, rdb, row) })
	})
}

// Tests are bodies of tests of the same kind, each of which gets a subject of its own.
type Tests[S any] map[string]func(t *testing.T, subject S)

// A SceneTest is a test of a scene of that rate.
type SceneTest[S any] struct {
	Cfg rratelimiter.Config
	Run func(t *testing.T, s S)
}

// OnScenes runs them in bubbles.
func OnScenes[S any](t *testing.T, all map[string]SceneTest[S], newScene func(t *testing.T, cfg rratelimiter.Config) S) {
	t.Helper()
	Bubbles(t, all, func(t *testing.T, test SceneTest[S]) { test.Run(t, newScene(t, test.Cfg)) })
}

// Seeds are n rows, numbered from 0.
func Seeds(n uint64) map[string]uint64 {
	all := make(map[string]uint64, n)
	for seed := range n {
		all[fmt.Sprint("seed ", seed)] = seed
	}
	return all
}

// Rows are rows named as they print.
func Rows[R any](all ...R) map[string]R {
	rows := make(map[string]R, len(all))
	for _, row := range all {
		rows[fmt.Sprint(row)] = row
	}
	return rows
}

// Stepping is Each with a server by [redistest.Stepping] for each row.
func Stepping[R any](t *testing.T, rows map[string]R, test func(t *testing.T, rdb redistest.Client, step func(time.Duration), row R)) {
	t.Helper()
	Each(t, rows, func(t *testing.T, row R) {
		redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) { test(t, rdb, step, row) })
	})
}

// With RRL_MERGE=all the members of all limiters are merged as soon as there are two.
var mergesAll = os.Getenv("RRL_MERGE") == "all"

func init() {
	if mergesAll {
		merge.Everything()
	}
}

// Main runs a package's tests for its TestMain. With RRL_MERGE=all it fails if nothing was merged.
func Main(m *testing.M) {
	code := m.Run()
	if mergesAll {
		merges := merge.Merges.Load()
		fmt.Fprintf(os.Stderr, "RRL_MERGE=all: %d members stand for others\n", merges)
		if merges == 0 {
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// ByDefault returns a Client's handle whose default is cfg.
func ByDefault(c *rratelimiter.Client, name string, cfg rratelimiter.Config) *rratelimiter.RateLimiter {
	return c.RateLimiter(name, rratelimiter.WithDefault(cfg))
}

// Alive returns a Config of a limiter that expires if its waiting callers stop asking.
func Alive(kind rratelimiter.RateType, rate int64, interval time.Duration) rratelimiter.Config {
	return rratelimiter.Config{Type: kind, Rate: rate, Interval: interval, KeepAlive: interval}
}

// LogTo is the option of a Client that writes its log to w.
func LogTo(w io.Writer) rratelimiter.Option {
	return rratelimiter.WithLogger(slog.New(slog.NewTextHandler(w, nil)))
}

// FarAway returns a client of a miniredis to which each pipeline takes that long.
func FarAway(t testing.TB, trip time.Duration) redistest.Client {
	t.Helper()
	_, m := redistest.Mini(t)
	return FarAwayOf(t, m, trip)
}

// FarAwayOf is FarAway for m.
func FarAwayOf(t testing.TB, m *miniredis.Miniredis, trip time.Duration) redistest.Client {
	t.Helper()
	far := redistest.MiniClient(t, m, &redistest.Options{PoolSize: 20})
	far.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if cmds[0].Name() != "hello" { // as if all connections were there
			time.Sleep(trip)
		}
		return next()
	}))
	return far
}

// Patient is the option of a Client that waits for its calls with redistest.Patience.
func Patient() rratelimiter.Option {
	return rratelimiter.WithCallTimeout(redistest.Patience(script.DefaultTimeout))
}

// A Recorder is an observer that keeps all that it receives.
type Recorder struct {
	decided redistest.List[limit.Decided]
	flights redistest.List[limit.Flight]
	leases  redistest.List[limit.Lease]
	settled redistest.List[limit.Settled]
	events  redistest.List[limit.Event]
	waiting redistest.List[waiting]
}

// waiting is how many callers were said to wait for a limiter.
type waiting struct {
	limiter string
	callers int
}

// Decided keeps d.
func (r *Recorder) Decided(_ context.Context, d limit.Decided) { r.decided.Add(d) }

// Landed keeps f.
func (r *Recorder) Landed(f limit.Flight) { r.flights.Add(f) }

// Waiting keeps the number.
func (r *Recorder) Waiting(limiter string, callers int) { r.waiting.Add(waiting{limiter, callers}) }

// Leased keeps l.
func (r *Recorder) Leased(l limit.Lease) { r.leases.Add(l) }

// Settled keeps s.
func (r *Recorder) Settled(s limit.Settled) { r.settled.Add(s) }

// Happened keeps e.
func (r *Recorder) Happened(e limit.Event) { r.events.Add(e) }

// Decisions returns those received since the last call.
func (r *Recorder) Decisions() []limit.Decided { return r.decided.Take() }

// Sources returns how many decisions came from each since the last call.
func (r *Recorder) Sources() map[limit.Source]int {
	all := map[limit.Source]int{}
	for _, d := range r.decided.Take() {
		all[d.Source]++
	}
	return all
}

// Flights returns those received so far.
func (r *Recorder) Flights() []limit.Flight { return r.flights.All() }

// Settlements returns those received so far.
func (r *Recorder) Settlements() []limit.Settled { return r.settled.All() }

// Leases returns those received so far.
func (r *Recorder) Leases() []limit.Lease { return r.leases.All() }

// Events returns those received so far.
func (r *Recorder) Events() []limit.Event { return r.events.All() }

// Callers returns how many were said to wait, one number after another.
func (r *Recorder) Callers(limiter string) (all []int) {
	for _, w := range r.waiting.All() {
		if w.limiter == limiter {
			all = append(all, w.callers)
		}
	}
	return all
}

// NewScript returns a script of a test's own.
func NewScript(source string) *lua.Script {
	sha := redis.NewScript(source).Hash()
	return &lua.Script{Name: "test", Source: source, SHA: sha, Word: sha}
}

// Incr is a script that counts how often it has run, and answers that.
var Incr = NewScript("return redis.call('INCR', KEYS[1])")
