package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// outage makes rdb fail while the returned switch is on.
func outage(rdb redistest.Client) *atomic.Bool {
	var down atomic.Bool
	rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if down.Load() {
			return redistest.Fail(cmds, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
		}
		return next()
	}))
	return &down
}

// While Redis does not decide, each policy answers by its own rule, and a local refusal costs the others nothing.
func TestPolicies_EachHasItsOutagePolicy(t *testing.T) {
	t.Parallel()
	with := func(f limit.Failure) []rratelimiter.LimiterOption {
		return []rratelimiter.LimiterOption{rratelimiter.WithFailure(f)}
	}
	open, local, closed := with(limit.FailOpen()), with(limit.FailLocal(0.5)), with(limit.FailClosed())
	own := httplimit.WithPolicy(httplimit.Policy{Name: "own", Limiter: grants(), Fallback: httplimit.Local(3, time.Minute)})
	for name, c := range map[string]struct {
		opts     [4][]rratelimiter.LimiterOption // of the quotas
		more     []httplimit.Option
		statuses []int
		violated []any
	}{
		"none":                {statuses: []int{503, 503, 503, 503, 503}},
		"all open":            {opts: [4][]rratelimiter.LimiterOption{open, open, open, open}, statuses: []int{200, 200, 200, 200, 200}},
		"the option":          {more: []httplimit.Option{httplimit.WithFailure(limit.FailOpen())}, statuses: []int{200, 200, 200, 200}},
		"local":               {opts: [4][]rratelimiter.LimiterOption{local, local, local, local}, statuses: []int{200, 200, 429, 429}, violated: []any{"tokens-minute"}},
		"open and local":      {opts: [4][]rratelimiter.LimiterOption{open, local, open, open}, statuses: []int{200, 200, 429, 429}, violated: []any{"tokens-minute"}},
		"one closes":          {opts: [4][]rratelimiter.LimiterOption{open, open, closed, open}, statuses: []int{503, 503, 503, 503, 503}},
		"one has no policy":   {opts: [4][]rratelimiter.LimiterOption{open, open, nil, open}, statuses: []int{503, 503, 503, 503, 503}},
		"the option for rest": {opts: [4][]rratelimiter.LimiterOption{nil, local, nil, nil}, more: []httplimit.Option{httplimit.WithFailure(limit.FailOpen())}, statuses: []int{200, 200, 429}, violated: []any{"tokens-minute"}},
		"a fallback": {
			more: []httplimit.Option{httplimit.WithFallback(httplimit.Local(500, time.Minute)), own}, statuses: []int{200, 200, 429}, violated: []any{"tokens-minute", "tokens-day"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, _ := redistest.Mini(t)
				down := outage(rdb)
				all := quotas()
				for i := range all {
					all[i].opts = c.opts[i]
				}
				s := newSite(t, rdb, all, c.more...)
				s.handle = func(ctx context.Context) { assert.NoError(t, httplimit.Settle(ctx, 250)) }
				assert.Equal(t, http.StatusOK, s.ask(t.Context(), 250).Code)
				time.Sleep(time.Second) // for the limits to be known
				charged := s.leftOfAll()
				down.Store(true)
				for i, status := range c.statuses {
					w := s.ask(t.Context(), 250)
					assert.Equal(t, status, w.Code, "request %d", i)
					if status == http.StatusTooManyRequests {
						assert.Equal(t, c.violated, problem(t, w)["violated-policies"])
					}
				}
				s.errs.Take()
				down.Store(false)
				time.Sleep(2 * time.Second)
				assert.Equal(t, charged, s.leftOfAll(), "nothing was charged")
				before := s.calls.Scripts()
				_ = s.ask(t.Context(), 250) // it may be the probe
				time.Sleep(time.Second)
				assert.Equal(t, http.StatusOK, s.ask(t.Context(), 250).Code)
				assert.Greater(t, s.calls.Scripts(), before)
			})
		})
	}
}

// An estimate above what answers in Redis' place takes all of that, whether the policies are asked together or not.
func TestPolicies_EstimateAboveTheLocalLimit(t *testing.T) {
	t.Parallel()
	for _, of := range []func(testing.TB, redistest.Client, []quota, ...httplimit.Option) *site{newSite, newSiteOf} {
		for name, opt := range map[string]httplimit.Option{
			"a share": httplimit.WithFailure(limit.FailLocal(0.5)), "a fallback": httplimit.WithFallback(httplimit.Local(500, time.Minute)),
		} {
			synctest.Test(t, func(t *testing.T) {
				rdb, _ := redistest.Mini(t)
				down := outage(rdb)
				s := of(t, rdb, quotas(), opt)
				assert.Equal(t, http.StatusOK, s.ask(t.Context(), 1).Code)
				time.Sleep(time.Minute)
				down.Store(true)
				s.handle = func(ctx context.Context) { assert.NoError(t, httplimit.Settle(ctx, 10)) }
				s.seen.Decisions()
				w := s.ask(t.Context(), 800)
				assert.Len(t, s.seen.Decisions(), len(quotas()), "each limiter answers the request once")
				assert.Equal(t, http.StatusOK, w.Code, name)
				assert.Contains(t, w.Header().Get("RateLimit"), `"tokens-minute";r=0;t=60`, name)
				assert.Equal(t, http.StatusTooManyRequests, s.ask(t.Context(), 800).Code, name)
				s.errs.Take()
			})
		}
	}
}

// slow is a limiter that takes a while.
type slow struct{ takes time.Duration }

func (s slow) Take(_ context.Context, _ string, n int64) (limit.Decision, error) {
	time.Sleep(s.takes)
	if n > 1 {
		panic("a fallback that counts no tokens")
	}
	return limit.Decision{Granted: true, Limit: 9, Remaining: 9 - n}, nil
}

// The fallbacks of all policies have their time at once. If one panics, what others granted is given back.
func TestPolicies_FallbacksAtTheSameTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		outage(rdb).Store(true)
		local := httplimit.Local(10, time.Hour)
		other := httplimit.Policy{
			Name: "other", Limiter: limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerMinute(5)), Fallback: local,
		}
		const takes = 900 * time.Millisecond
		s := newSite(t, rdb, quotas(), httplimit.WithFallback(slow{takes}), httplimit.WithPolicy(other))
		start := time.Now()
		assert.Equal(t, http.StatusOK, s.ask(t.Context(), 1).Code)
		assert.Less(t, time.Since(start), 2*takes)
		assert.PanicsWithValue(t, "a fallback that counts no tokens", func() { s.ask(t.Context(), 2) })
		d, err := local.Take(t.Context(), "http:other:{ann}", 1)
		require.NoError(t, err)
		assert.EqualValues(t, 8, d.Remaining)
		s.errs.Take()
	})
}

// A policy's local limiter follows the limit that requests have met, though others of its kind have none.
func TestPolicies_LocalLimitIsLearnt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		down := outage(rdb)
		all := quotas()
		all[1].opts = []rratelimiter.LimiterOption{rratelimiter.WithFailure(limit.FailLocal(0.5))}
		for _, i := range []int{0, 2, 3} {
			all[i].opts = []rratelimiter.LimiterOption{rratelimiter.WithFailure(limit.FailOpen())}
		}
		s := newSite(t, rdb, all)
		s.ask(t.Context(), 1)
		require.NoError(t, s.client.RateLimiter("http:tokens-minute:{ann}").SetRate(t.Context(), rratelimiter.PerMinute(100)))
		s.ask(t.Context(), 1)
		time.Sleep(time.Second)
		down.Store(true)
		assert.Equal(t, http.StatusOK, s.ask(t.Context(), 50).Code)
		assert.Equal(t, http.StatusTooManyRequests, s.ask(t.Context(), 1).Code)
		s.errs.Take()
	})
}

// Three requests meet an outage, others are answered at once, and the observers of limiters and policies learn it.
func TestPolicies_OneBreakerForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		var hung atomic.Bool
		rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			if !hung.Load() {
				return next()
			}
			time.Sleep(3 * time.Second)
			return redistest.Fail(cmds, context.DeadlineExceeded)
		}))
		s := newSite(t, rdb, quotas(), httplimit.WithFailure(limit.FailOpen()))
		assert.Equal(t, http.StatusOK, s.ask(t.Context(), 1).Code)
		hung.Store(true)
		for i := range 20 {
			start := time.Now()
			assert.Equal(t, http.StatusOK, s.ask(t.Context(), 1).Code)
			if i < 3 {
				assert.Equal(t, httplimit.DefaultTimeout, time.Since(start))
			} else {
				assert.LessOrEqual(t, time.Since(start), 5*time.Millisecond)
			}
		}
		assert.Len(t, s.errs.Take(), 3)
		synctest.Wait()
		var told []string
		for _, e := range s.told.Events() {
			if e.Kind == limit.AskedNoMore {
				told = append(told, e.Limiter)
			}
		}
		slices.Sort(told)
		assert.Equal(t, []string{"requests-day", "requests-minute", "tokens-day", "tokens-minute"}, told)
		hung.Store(false)
		time.Sleep(time.Minute)
	})
}

// A limiter that only watches refuses no request, and takes none of what the others charge.
func TestPolicies_ShadowAmongThem(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		all := quotas()
		all[1].opts = []rratelimiter.LimiterOption{rratelimiter.WithShadow()}
		s := newSite(t, rdb, all)
		for range 3 {
			assert.Equal(t, http.StatusOK, s.ask(t.Context(), 600).Code)
		}
		assert.Equal(t, []int64{7, 400, 97, 5000 - 1800}, s.leftOfAll(), "what it would have refused is not charged")
		s.ask(t.Context(), 3200)
		w := s.ask(t.Context(), 1)
		assert.Equal(t, []any{"tokens-day"}, problem(t, w)["violated-policies"])
		assert.Equal(t, []int64{6, 400, 96, 0}, s.leftOfAll())
	})
}

// In a middleware that only watches each request passes, and those that would have been refused are charged to none.
func TestWithShadow_PoliciesTogether(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		s := newSite(t, rdb, quotas(), httplimit.WithShadow())
		var granted []bool
		s.handle = func(ctx context.Context) {
			granted = nil
			for _, d := range httplimit.Decisions(ctx) {
				granted = append(granted, d.Granted)
			}
			assert.NoError(t, httplimit.Settle(ctx, 500))
		}
		for range 2 {
			assert.Equal(t, http.StatusOK, s.ask(t.Context(), 300).Code)
		}
		before := s.calls.Scripts()
		assert.Equal(t, http.StatusOK, s.ask(t.Context(), 300).Code)
		assert.Equal(t, 1, s.calls.Scripts()-before)
		assert.Equal(t, []bool{true, false, true, true}, granted)
		assert.Equal(t, []int64{8, 0, 98, 4000}, s.leftOfAll())
	})
}

// A request whose client goes away, or whose time is over, keeps no permits.
func TestPolicies_CallerGoes(t *testing.T) {
	t.Parallel()
	for name, ending := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"cancelled": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(10*time.Millisecond, cancel)
			return ctx, cancel
		},
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 10*time.Millisecond)
		},
		"timeout": context.WithCancel,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
				s := newSite(t, rdb, quotas(), httplimit.WithTimeout(500*time.Millisecond))
				s.ask(t.Context(), 1)
				rdb.AddHook(limitertest.Slow(800 * time.Millisecond))
				s.handle = func(context.Context) { t.Error("it got through") }
				ctx, cancel := ending(t.Context())
				defer cancel()
				start := time.Now()
				assert.Equal(t, http.StatusServiceUnavailable, s.ask(ctx, 100).Code)
				assert.LessOrEqual(t, time.Since(start), 500*time.Millisecond)
				if errs := s.errs.Take(); name == "cancelled" {
					assert.Empty(t, errs)
				} else {
					require.Len(t, errs, 1)
				}
				time.Sleep(5 * time.Second)
				assert.Equal(t, []int64{9, 999, 99, 4999}, s.leftOfAll())
			})
		})
	}
}

// What a mistake of one limiter comes to is as if each had been asked alone, and costs the others nothing.
func TestPolicies_OneIsDamaged(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		s := newSite(t, rdb, quotas())
		s.ask(t.Context(), 100)
		require.NoError(t, rdb.HSet(t.Context(), "http:tokens-day:{ann}", "rate", "many").Err())
		left := s.left("requests-minute", "tokens-minute", "requests-day")
		assert.Equal(t, http.StatusServiceUnavailable, s.ask(t.Context(), 100).Code)
		errs := s.errs.Take()
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], limit.ErrCorrupt)
		require.ErrorContains(t, errs[0], `httplimit: policy "tokens-day": rratelimiter: Take "http:tokens-day:{ann}"`)
		assert.Equal(t, left, s.left("requests-minute", "tokens-minute", "requests-day"))
	})
}

// A closed Client decides nothing, whatever its limiters' policies are, also if it was closed during an outage.
func TestPolicies_ClientIsClosed(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			rdb, _ := redistest.Mini(t)
			s := newSite(t, rdb, quotas(), httplimit.WithFailure(limit.FailOpen()))
			outage(rdb).Store(fails)
			for range 5 {
				assert.Equal(t, http.StatusOK, s.ask(t.Context(), 1).Code)
			}
			s.errs.Take()
			require.NoError(t, s.client.Close(t.Context()))
			assert.Equal(t, http.StatusServiceUnavailable, s.ask(t.Context(), 1).Code)
			for _, err := range s.errs.Take() {
				require.ErrorIs(t, err, limit.ErrClosed)
			}
		})
	}
}

// Leases and remembered refusals answer from memory among policies that are asked together.
func TestPolicies_AnswersFromMemoryAmongThem(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		all := quotas()
		all[0].opts = []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{Life: 10 * time.Second})}
		all[2].rate = rratelimiter.PerDay(3)
		all[2].opts = []rratelimiter.LimiterOption{rratelimiter.WithRefusalCache()}
		s := newSite(t, rdb, all)
		for range 3 {
			assert.Equal(t, http.StatusOK, s.ask(t.Context(), 10).Code)
		}
		sources := func() (all []limit.Source) {
			synctest.Wait()
			for _, d := range s.seen.Decisions() {
				all = append(all, d.Source)
			}
			return all
		}
		assert.Contains(t, sources(), limit.FromMemory)
		for range 2 {
			assert.Equal(t, http.StatusTooManyRequests, s.ask(t.Context(), 10).Code)
		}
		assert.Equal(t, []int64{970, 4970}, s.left("tokens-minute", "tokens-day"))
	})
}

// On a cluster each user's limits are on one server, and one script call decides.
func TestPolicies_OnACluster(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "a cluster")
	s := newSite(t, redistest.StartCluster(t, 3, 0).Client(t, nil), quotas())
	s.handle = func(ctx context.Context) { assert.NoError(t, httplimit.Settle(ctx, 400)) }
	for _, user := range []string{"ann", "bob", "zoë", "eve"} {
		r := newRequest(t)
		r.Header = http.Header{"X-User": {user}, "Tokens": {"600"}}
		assert.Equal(t, http.StatusOK, serve(s.handler, r).Code, user)
	}
	assert.Equal(t, []int64{9, 600, 99, 4600}, s.leftOfAll())
	before := s.calls.Scripts()
	assert.Equal(t, http.StatusTooManyRequests, s.ask(t.Context(), 700).Code)
	assert.Equal(t, 1, s.calls.Scripts()-before)
	assert.Equal(t, []int64{9, 600, 99, 4600}, s.leftOfAll())
}

// A transport whose limiter waits for permits behaves as one that is asked again and again.
func TestTransport_OutagesWhileTheLimiterWaits(t *testing.T) {
	t.Parallel()
	middlewaretest.Outages(t, middlewaretest.Guarded{
		Fallbacks: true,
		Open: func(t *testing.T, rdb redistest.Client, how middlewaretest.Instead, told func(error)) middlewaretest.Asking {
			t.Helper()
			opts := []httplimit.Option{
				httplimit.WithWait(10 * time.Millisecond),
				httplimit.WithErrorHandler(func(_ *http.Request, err error) { told(err) }),
			}
			if how.Failure != nil {
				opts = append(opts, httplimit.WithFailure(*how.Failure))
			} else {
				opts = append(opts, httplimit.WithFallback(how.Fallback))
			}
			keyed := limitertest.NewClient(t, rdb).Keyed("rate:", rratelimiter.PerHour(8))
			transport := httplimit.NewTransport(answers(http.StatusNoContent), keyed, opts...)
			return func(ctx context.Context) (bool, error) {
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.org/", http.NoBody)
				require.NoError(t, err)
				resp, err := transport.RoundTrip(r) //nolint:bodyclose // it has none
				var no *httplimit.NotSentError
				if errors.As(err, &no) && !errors.Is(err, limit.ErrUnavailable) {
					return false, nil
				}
				return resp != nil, err
			}
		},
	})
}

// The limiter's own policy answers within the middleware's timeout, which is shorter than that of calls.
func TestMiddleware_ShorterTimeoutCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, _ func() error) error {
			time.Sleep(3 * time.Second)
			return redistest.Fail(cmds, context.DeadlineExceeded)
		}))
		told := &limitertest.Recorder{}
		client := limitertest.NewClient(t, rdb, rratelimiter.WithFailure(limit.FailLocal(0.25)), rratelimiter.WithObserver(told))
		watched := &limitertest.Recorder{}
		handle := wrap(t, httplimit.Policy{Name: "users", Limiter: client.Keyed("rate:", rratelimiter.PerHour(40))}, quiet, httplimit.WithObserver(watched))
		for i := range 20 {
			start, want := time.Now(), middlewaretest.Passed
			if i >= 10 {
				want = middlewaretest.Refused
			}
			assert.Equal(t, want, handle(t.Context(), "").Verdict, "request %d", i)
			if i < 3 {
				assert.Equal(t, time.Second, time.Since(start))
			} else {
				assert.LessOrEqual(t, time.Since(start), 5*time.Millisecond)
			}
		}
		synctest.Wait()
		count := func(r *limitertest.Recorder) (limiters []string) {
			for _, e := range r.Events() {
				if e.Kind == limit.AskedNoMore {
					limiters = append(limiters, e.Limiter)
				}
			}
			return limiters
		}
		assert.Equal(t, []string{""}, count(told), "the Client's observer learns it")
		assert.Equal(t, []string{"users"}, count(watched), "and the middleware's")
		for _, d := range watched.Decisions() {
			assert.Equal(t, limit.FromLocal, d.Source)
		}
		time.Sleep(time.Minute)
	})
}

// WithTimeout bounds each try of a request that waits for permits, and not how long it waits.
func TestTransport_TimeoutIsThatOfEachTry(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		var takes atomic.Int64
		takes.Store(int64(20 * ms))
		rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, send func() error) error {
			time.Sleep(time.Duration(takes.Load()))
			return send()
		}))
		keyed := limitertest.NewClient(t, rdb).Keyed("", limitertest.Every(1, time.Second))
		transport := func(opts ...httplimit.Option) http.RoundTripper {
			return httplimit.NewTransport(answers(http.StatusNoContent), keyed, append(opts, quiet)...)
		}
		for later := range 10 { // some are under way a second after they began to wait
			url := fmt.Sprintf("http://api%d.example.org", later)
			_, err := send(t.Context(), t, transport(), url)
			require.NoError(t, err)
			time.Sleep(time.Duration(later) * 5 * ms)
			_, err = send(t.Context(), t, transport(), url)
			require.NoError(t, err, "%d", later)
		}

		for url, opts := range map[string][]httplimit.Option{
			"http://a.example.org": nil, "http://b.example.org": {httplimit.WithWait(10 * time.Second)},
		} {
			_, err := send(t.Context(), t, transport(), url)
			require.NoError(t, err)
			silent := time.AfterFunc(500*ms, func() { takes.Store(int64(5 * time.Second)) })
			took, err := send(t.Context(), t, transport(opts...), url)
			require.ErrorIs(t, err, limit.ErrUnavailable)
			assert.False(t, silent.Stop())
			assert.Less(t, took, 2500*ms, "it waits for a second, and then for an answer")
			takes.Store(int64(20 * ms))
			time.Sleep(time.Minute)
		}
	})
}
