package concurrency_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

type observerTest func(t *testing.T, client *rratelimiter.Client, r *limitertest.Recorder, rdb redistest.Client)

// observe runs a test, in a bubble, with a Client that a Recorder observes.
func observe(t *testing.T, test observerTest) {
	rdb, _ := redistest.Mini(t)
	r := &limitertest.Recorder{}
	test(t, limitertest.NewClient(t, rdb, rratelimiter.WithObserver(r)), r, rdb)
}

// seenDecision is the part of a decision that the tests compare.
type seenDecision struct {
	limiter, call string
	permits       int64
	outcome       limit.Outcome
	kind          limit.ErrorKind
	source        limit.Source
	waited        time.Duration
}

func decisions(r *limitertest.Recorder) []seenDecision {
	var all []seenDecision
	for _, d := range r.Decisions() {
		all = append(all, seenDecision{d.Limiter, d.Call, d.Permits, d.Outcome, d.Kind, d.Source, d.Waited})
	}
	return all
}

var observerTests = map[string]observerTest{
	"decisions": func(t *testing.T, client *rratelimiter.Client, r *limitertest.Recorder, _ redistest.Client) {
		ctx, three := t.Context(), limitertest.Every(3, time.Minute)
		l, all := limitertest.ByDefault(client, "orders", three), limitertest.ByDefault(client, "{shop}a", three)
		both := limitertest.ByDefault(client, "{shop}b", three)
		_, _ = l.TryAcquire(ctx, 2, 0)
		_, _ = l.Take(ctx, 2)
		_ = l.Acquire(ctx, 3)
		_, _ = l.TryAcquire(ctx, 3, time.Second)
		_ = within(t, time.Second, l.Wait)
		_, _ = l.Take(ctx, 4)
		_, _ = l.Take(ctx, 1<<40)
		_, _ = l.Take(ctx, 0)
		_ = l.Acquire(limitertest.EndedContext(t), 1)
		_, _ = client.RateLimiter("none").Take(ctx, 1)
		_, _ = client.Keyed("users:", limitertest.Every(1, time.Minute)).Take(ctx, "ann", 1)
		_, _ = client.TryAcquireAll(ctx, 0, all.Claim(1), both.Claim(1))
		_, _ = client.TryAcquireAll(ctx, 0, all.Claim(1))
		seen := client.RateLimiter("seen", rratelimiter.WithDefault(limitertest.Every(1, time.Minute)), rratelimiter.WithRefusalCache())
		for range 3 {
			_, _ = seen.TryAcquire(ctx, 1, 0)
		}
		_, _ = seen.Take(ctx, 1)
		assert.Equal(t, []seenDecision{
			{"orders", "TryAcquire", 2, limit.Granted, "", limit.FromRedis, 0},
			{"orders", "Take", 2, limit.Refused, "", limit.FromRedis, 0},
			{"orders", "Acquire", 3, limit.Granted, "", limit.FromRedis, time.Minute},
			{"orders", "TryAcquire", 3, limit.Refused, "", limit.FromRedis, time.Second},
			{"orders", "Wait", 1, limit.Refused, "", limit.FromRedis, 0},
			{"orders", "Take", 4, limit.TooCostly, "", limit.FromRedis, 0},
			{"orders", "Take", 1 << 40, limit.TooCostly, "", "", 0},
			{"orders", "Take", 0, limit.Failed, limit.KindInvalid, "", 0},
			{"orders", "Acquire", 1, limit.Failed, limit.KindCanceled, "", 0},
			{"none", "Take", 1, limit.Failed, limit.KindNotInitialized, limit.FromRedis, 0},
			{"users:", "Take", 1, limit.Granted, "", limit.FromRedis, 0},
			{"{shop}a", "TryAcquireAll", 1, limit.Granted, "", limit.FromRedis, 0},
			{"{shop}b", "TryAcquireAll", 1, limit.Granted, "", limit.FromRedis, 0},
			{"{shop}a", "TryAcquireAll", 1, limit.Granted, "", limit.FromRedis, 0},
			{"seen", "TryAcquire", 1, limit.Granted, "", limit.FromRedis, 0},
			{"seen", "TryAcquire", 1, limit.Refused, "", limit.FromRedis, 0},
			{"seen", "TryAcquire", 1, limit.Refused, "", limit.FromMemory, 0},
			{"seen", "Take", 1, limit.Refused, "", limit.FromMemory, 0},
		}, decisions(r))
	},
	"how many wait": func(t *testing.T, client *rratelimiter.Client, r *limitertest.Recorder, rdb redistest.Client) {
		l := limitertest.ByDefault(client, "orders", limitertest.Every(1, time.Minute))
		limitertest.MustAcquire(t, l, 1)
		var callers sync.WaitGroup
		for i := range 3 {
			callers.Go(func() { assert.NoError(t, l.Acquire(t.Context(), 1)) })
			synctest.Wait()
			assert.Equal(t, i+1, r.Callers("orders")[len(r.Callers("orders"))-1])
		}
		callers.Wait()
		synctest.Wait()
		counts := r.Callers("orders")
		assert.Equal(t, 0, counts[len(counts)-1])
		assert.Len(t, r.Callers("orders"), 6, "each change is reported: they are a minute apart")
	},
	// Each request is in one flight, and no flight without requests is reported.
	"flights": func(t *testing.T, client *rratelimiter.Client, r *limitertest.Recorder, rdb redistest.Client) {
		limitertest.MustAcquire(t, limitertest.ByDefault(client, "a", limitertest.Every(1000, time.Minute)), 1)
		synctest.Wait()
		require.Equal(t, []limit.Flight{{Requests: 1, Calls: 1}, {Requests: 1, Calls: 1, Repeats: 1}}, r.Flights(),
			"the server did not know the script at first")
		rdb.AddHook(limitertest.Slow(ms))
		limitertest.Together(200, func(i int) {
			limitertest.MustAcquire(t, limitertest.ByDefault(client, []string{"a", "b", "c"}[i%3], limitertest.Every(1000, time.Minute)), 1)
		})
		synctest.Wait()
		requests, calls := 0, 0
		for _, f := range r.Flights()[2:] {
			requests += f.Requests
			calls += f.Calls
			assert.NoError(t, f.Err)
		}
		assert.Equal(t, 200, requests)
		assert.Less(t, calls, 100)
		assert.GreaterOrEqual(t, calls, 3)
	},
	"leases": func(t *testing.T, client *rratelimiter.Client, r *limitertest.Recorder, rdb redistest.Client) {
		l := client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(100_000, time.Minute)),
			rratelimiter.WithLease(rratelimiter.Lease{Permits: 100, Life: 3 * time.Second}))
		for range 1000 {
			limitertest.MustAcquire(t, l, 1)
			time.Sleep(10 * ms)
		}
		require.NoError(t, client.Close(t.Context()))
		synctest.Wait()
		var began, ended, taken, unused int64
		for _, lease := range r.Leases() {
			if lease.Ended {
				ended++
				unused += lease.Unused
			} else {
				began++
				taken += lease.Permits
			}
		}
		assert.Equal(t, began, ended)
		assert.Positive(t, began)
		var redisSaid, memorySaid int64
		for _, d := range r.Decisions() {
			if d.Source == limit.FromMemory {
				memorySaid++
			} else {
				redisSaid++
			}
		}
		assert.Equal(t, int64(1000), redisSaid+memorySaid)
		assert.Equal(t, memorySaid, taken-unused)
	},
	// A limiter in shadow charges what it grants, reports what it would refuse, and lets all pass.
	"a limiter in shadow": func(t *testing.T, client *rratelimiter.Client, r *limitertest.Recorder, rdb redistest.Client) {
		l := client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(5, time.Hour)), rratelimiter.WithShadow())
		start := time.Now()
		limitertest.MustAcquire(t, l, 4)
		limitertest.MustAcquire(t, l, 2)
		require.NoError(t, l.Acquire(t.Context(), 3))
		require.NoError(t, limitertest.Granted(l.TryAcquire(t.Context(), 1000, time.Minute)))
		d := limitertest.Take(t, l, 2)
		assert.True(t, d.Granted)
		assert.Zero(t, d.RetryAfter)
		assert.Zero(t, time.Since(start))
		var outcomes []limit.Outcome
		for _, d := range r.Decisions() {
			assert.True(t, d.Shadow)
			outcomes = append(outcomes, d.Outcome)
		}
		assert.Equal(t, []limit.Outcome{limit.Granted, limit.Refused, limit.Refused, limit.TooCostly, limit.Refused}, outcomes)

		plain := client.RateLimiter("orders")
		assert.Equal(t, int64(1), limitertest.Available(t, plain), "what was granted is charged")
		require.NoError(t, l.Release(t.Context(), 1007))
		assert.Equal(t, int64(1), limitertest.Available(t, plain), "what was let through is not")
		require.NoError(t, l.Release(t.Context(), 1))
		assert.Equal(t, int64(2), limitertest.Available(t, plain))

		require.ErrorIs(t, limitertest.Second(l.TryAcquire(t.Context(), 0, 0)), rratelimiter.ErrInvalidPermits)
		require.ErrorIs(t, l.Acquire(limitertest.EndedContext(t), 1), context.Canceled)
		limitertest.MustAcquire(t, client.RateLimiter("none", rratelimiter.WithShadow()), 1)
	},
}

func TestObserver(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, observerTests, observe)
}

// late is an observer that falls far behind.
type late struct {
	limitertest.Recorder

	gate chan struct{}
}

func (l *late) Landed(limit.Flight) { <-l.gate }

var shadowTests = limitertest.Tests[redistest.Client]{
	"shadow of a Client": func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb, rratelimiter.WithShadow())
		one := client.RateLimiter("{shop}a", rratelimiter.WithDefault(limitertest.Every(1, time.Hour)), rratelimiter.WithRefusalCache())
		two := limitertest.ByDefault(client, "{shop}b", limitertest.Every(9, time.Hour))
		for range 5 {
			require.NoError(t, limitertest.Granted(client.TryAcquireAll(t.Context(), time.Minute, one.Claim(1), two.Claim(1))))
			limitertest.MustAcquire(t, one, 1)
		}
		assert.Equal(t, int64(8), limitertest.Available(t, two), "the one that they were granted together")
		_, back, err := client.Keyed("users:", limitertest.Every(1, time.Hour)).TakeReturnable(t.Context(), "ann", 7)
		require.NoError(t, err)
		require.NoError(t, back(t.Context()))
	},
	"shadow of a limiter of keys": func(t *testing.T, rdb redistest.Client) {
		r := &limitertest.Recorder{}
		cfg := fixedwindow.Config{Limit: 2, Window: time.Hour}
		l := fixedwindow.New(limitertest.OpenClient(rdb, rratelimiter.WithObserver(r)), cfg, rratelimiter.WithShadow())
		for range 5 {
			d, back, err := l.TakeReturnable(t.Context(), "ann", 1)
			require.NoError(t, err)
			assert.True(t, d.Granted)
			require.NotNil(t, back)
			require.NoError(t, back(t.Context()))
			assert.True(t, limittest.Take(t, l, "ann", 1).Granted)
		}
		refused := 0
		for _, d := range r.Decisions() {
			if assert.True(t, d.Shadow) && d.Outcome == limit.Refused {
				refused++
			}
		}
		assert.Equal(t, 6, refused, "two a round, once two are taken")
		assert.False(t, limittest.Take(t, fixedwindow.New(limitertest.OpenClient(rdb), cfg), "ann", 1).Granted)
	},
	"shadow takes all": func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb, rratelimiter.WithShadow())
		l := limitertest.ByDefault(client, "orders", limitertest.Every(5, time.Hour))
		keys := fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 5, Window: time.Hour}, rratelimiter.WithShadow())
		for range 3 {
			n, _, err := l.TakeUpTo(t.Context(), 4)
			require.NoError(t, err)
			assert.Equal(t, int64(4), n)
			n, _, err = keys.TakeUpTo(t.Context(), "ann", 4)
			require.NoError(t, err)
			assert.Equal(t, int64(4), n)
		}
		_, err := client.TryAcquireAll(t.Context(), 0, client.RateLimiter("a").Claim(1), client.RateLimiter("b").Claim(1))
		assert.ErrorIs(t, err, rratelimiter.ErrUnsupported, "a mistake of the program's")
	},
	"observer of limiters of keys": func(t *testing.T, rdb redistest.Client) {
		r := &limitertest.Recorder{}
		client := limitertest.OpenClient(rdb, rratelimiter.WithObserver(r))
		for _, l := range []limit.Limiter{
			fixedwindow.New(client, fixedwindow.Config{Limit: 1, Window: time.Minute}),
			slidinglog.New(client, slidinglog.Config{Limit: 1, Window: time.Minute}, rratelimiter.WithName("logins")),
			tokenbucket.New(client, tokenbucket.Config{Capacity: 1, Refill: 1, Interval: time.Minute}),
		} {
			key := redistest.Name(t)
			for range 2 {
				require.NoError(t, limitertest.Second(l.Take(t.Context(), key, 1)))
			}
		}
		var want []seenDecision
		for _, name := range []string{"fixedwindow", "logins", "tokenbucket"} {
			want = append(want,
				seenDecision{name, "Take", 1, limit.Granted, "", limit.FromRedis, 0}, seenDecision{name, "Take", 1, limit.Refused, "", limit.FromRedis, 0})
		}
		assert.Equal(t, want, decisions(r))
		synctest.Wait()
		assert.Len(t, r.Flights(), 9, "the server did not know the scripts")
	},
	// One that has caught up receives again how many wait.
	"observer that fell behind": func(t *testing.T, rdb redistest.Client) {
		r := &late{gate: make(chan struct{})}
		client := limitertest.NewClient(t, rdb, rratelimiter.WithObserver(r))
		l := client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(1, time.Minute)), rratelimiter.WithRefusalCache())
		for range 10_100 {
			limitertest.Try(t, l, 1)
		}
		require.NoError(t, l.Acquire(t.Context(), 1))
		close(r.gate)
		synctest.Wait()
		require.NoError(t, l.Acquire(t.Context(), 1))
		synctest.Wait()
		counts := r.Callers("orders")
		require.NotEmpty(t, counts)
		assert.Zero(t, counts[len(counts)-1])
	},
	// TryAcquireAll refuses as its Client says, and the observer sees that.
	"one of all": func(t *testing.T, rdb redistest.Client) {
		recorder := &limitertest.Recorder{}
		client := limitertest.NewClient(t, rdb, rratelimiter.WithObserver(recorder))
		watched := client.RateLimiter("{s}a", rratelimiter.WithDefault(limitertest.Every(1, time.Hour)), rratelimiter.WithShadow())
		other := limitertest.ByDefault(client, "{s}b", limitertest.Every(1, time.Hour))
		for _, want := range []bool{true, false} {
			assert.Equal(t, want, limitertest.TryAll(t, client, 1, watched, other))
		}
		for _, d := range recorder.Decisions() {
			assert.False(t, d.Shadow, d.Limiter)
		}
	},
}

func TestShadow(t *testing.T) {
	t.Parallel()
	limitertest.OnMini(t, shadowTests)
}

// A limiter in shadow refuses nothing because Redis hangs, however its client times attempts.
func TestShadowWhileRedisHangs(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]bool{"inline": true, "beside": false}, func(t *testing.T, inline bool) {
		p := redistest.StartProxy(t, redistest.Shared(t).Addr())
		rdb := p.Client(t, &redistest.Options{ContextTimeoutEnabled: inline})
		client := limitertest.NewClient(t, rdb, rratelimiter.WithShadow(), rratelimiter.WithCallTimeout(200*ms))
		window := fixedwindow.New(rratelimiter.New(rdb, rratelimiter.WithCallTimeout(200*ms)), fixedwindow.Config{Limit: 5, Window: time.Hour}, rratelimiter.WithShadow())
		p.OnCommand(func(redistest.Command) redistest.Action { return redistest.DropAnswer })
		name := redistest.Name(t)
		plain := limitertest.ByDefault(client, name, rratelimiter.PerHour(5))
		for range 3 {
			limitertest.MustAcquire(t, plain, 1)
			assert.True(t, limittest.Take(t, window, name, 1).Granted)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*ms)
		defer cancel()
		plain = limitertest.NewClient(t, rdb, rratelimiter.WithShadow()).RateLimiter(name)
		require.Error(t, limitertest.Second(plain.TryAcquire(ctx, 1, 0)), "no one waits for the answer any more")
	})
}
