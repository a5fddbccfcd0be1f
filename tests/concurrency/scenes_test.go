package concurrency_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

const ms = time.Millisecond

var rounds = flag.Uint64("rounds", 2, "how many seeds, from 0, random walks have, and by how many times as much tests of races repeat")

// each runs test for each row, as a parallel subtest.
func each[R any](t *testing.T, rows map[string]R, test func(t *testing.T, row R)) {
	t.Helper()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, row)
		})
	}
}

// bubbles is each with a bubble for each row.
func bubbles[R any](t *testing.T, rows map[string]R, test func(t *testing.T, row R)) {
	t.Helper()
	each(t, rows, func(t *testing.T, row R) {
		synctest.Test(t, func(t *testing.T) { test(t, row) })
	})
}

// virtual is each with a server by [redistest.Virtual] for each row.
func virtual[R any](t *testing.T, rows map[string]R, test func(t *testing.T, rdb redistest.Client, row R)) {
	t.Helper()
	each(t, rows, func(t *testing.T, row R) {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) { test(t, rdb, row) })
	})
}

// kindsOfContext: calls have code of their own for contexts that can't end.
var kindsOfContext = map[string]func(context.Context) context.Context{
	"cancellable":     func(ctx context.Context) context.Context { return ctx },
	"not cancellable": context.WithoutCancel,
}

// seeds are n rows, numbered from 0.
func seeds(n uint64) map[string]uint64 {
	all := make(map[string]uint64, n)
	for seed := range n {
		all[fmt.Sprint("seed ", seed)] = seed
	}
	return all
}

// endedContext returns a context that has been cancelled.
func endedContext(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// together lets each of that many callers do something at the same time.
func together(callers int, do func(i int)) {
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}

// with returns a function for a proxy that does something to commands that contain text.
func with(text string, do redistest.Action) func(redistest.Command) redistest.Action {
	return func(c redistest.Command) redistest.Action {
		if c.Contains(text) {
			return do
		}
		return redistest.Pass
	}
}

// ended checks how calls ended, and when.
func ended(t *testing.T, want string, callers ...*limitertest.Caller) {
	t.Helper()
	for i, c := range callers {
		assert.Equal(t, want, c.Outcome(), "number %d", i)
	}
}

// failed checks with what calls failed, and when.
func failed(t *testing.T, target error, at time.Duration, callers ...*limitertest.Caller) {
	t.Helper()
	for _, c := range callers {
		c.RequireEnd(t, target, at)
	}
}

// leaver starts a call whose caller leaves when leave is called.
func leaver(t *testing.T, s *limitertest.Scene, call func(ctx context.Context) (bool, error)) (leave func()) {
	ctx, cancel := context.WithCancel(t.Context())
	c := s.Go(func() (bool, error) { return call(ctx) })
	return func() {
		t.Helper()
		cancel()
		synctest.Wait()
		c.RequireEnd(t, context.Canceled, s.Now())
	}
}

// What many tests call.
var mustTake, tryAll, reserve, configOf = limitertest.Take, limitertest.TryAll, limitertest.Reserve, limitertest.ConfigOf

// logTo is the option of a Client that writes its log to w.
func logTo(w io.Writer) rratelimiter.Option {
	return rratelimiter.WithLogger(slog.New(slog.NewTextHandler(w, nil)))
}

// byDefault returns a Client's handle whose default is cfg.
func byDefault(c *rratelimiter.Client, name string, cfg rratelimiter.Config) *rratelimiter.RateLimiter {
	return c.RateLimiter(name, rratelimiter.WithDefault(cfg))
}

// A change is what a program may do to a limiter beside taking permits.
type change func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error

func release(permits int64) change {
	return func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return l.Release(ctx, permits)
	}
}

func setRate(cfg rratelimiter.Config, opts ...rratelimiter.RateOption) change {
	return func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return l.SetRate(ctx, cfg, opts...)
	}
}

func updateRate(cfg rratelimiter.Config, opts ...rratelimiter.RateOption) change {
	return func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return limitertest.Second(l.UpdateRate(ctx, cfg, opts...))
	}
}

func deleteIt(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
	return limitertest.Second(l.Delete(ctx))
}

func expireIt(in time.Duration) change {
	return func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return limitertest.Second(l.Expire(ctx, in))
	}
}

func renameIt(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
	return l.Rename(ctx, limitertest.Besides(l.Name()))
}

// replaceBy renames a limiter of that rate to the name of the one it changes.
func replaceBy(cfg rratelimiter.Config) change {
	return func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		other := c.RateLimiter(limitertest.Besides(l.Name()))
		if _, err := other.TrySetRate(ctx, cfg); err != nil {
			return err
		}
		return other.Rename(ctx, l.Name())
	}
}

// makeAnew deletes a limiter and gives it that rate.
func makeAnew(cfg rratelimiter.Config) change {
	return func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		if _, err := l.Delete(ctx); err != nil {
			return err
		}
		return limitertest.Second(l.TrySetRate(ctx, cfg))
	}
}

// tests are bodies of tests of the same kind, each of which gets a subject of its own.
type tests[S any] map[string]func(t *testing.T, subject S)

// onMini runs them in bubbles, each on a miniredis.
func onMini(t *testing.T, all tests[redistest.Client]) {
	t.Helper()
	bubbles(t, all, func(t *testing.T, test func(t *testing.T, rdb redistest.Client)) {
		rdb, _ := redistest.Mini(t)
		test(t, rdb)
	})
}

// A sceneTest is a test of a scene of that rate.
type sceneTest[S any] struct {
	cfg rratelimiter.Config
	run func(t *testing.T, s S)
}

// onScenes runs them in bubbles.
func onScenes[S any](t *testing.T, all map[string]sceneTest[S], newScene func(t *testing.T, cfg rratelimiter.Config) S) {
	t.Helper()
	bubbles(t, all, func(t *testing.T, test sceneTest[S]) { test.run(t, newScene(t, test.cfg)) })
}

func newScene(t *testing.T, cfg rratelimiter.Config) *limitertest.Scene {
	return limitertest.NewScene(t, cfg)
}
