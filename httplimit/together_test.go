package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// quota is a limit of a user: its policy's name, and whether it counts tokens.
type quota struct {
	name   string
	rate   rratelimiter.Config
	tokens bool
	opts   []rratelimiter.LimiterOption
	hold   time.Duration
}

// quotas are what the services of language models limit.
func quotas() []quota {
	return []quota{
		{"requests-minute", rratelimiter.PerMinute(10), false, nil, 0}, {"tokens-minute", rratelimiter.PerMinute(1000), true, nil, 0},
		{"requests-day", rratelimiter.PerDay(100), false, nil, 0}, {"tokens-day", rratelimiter.PerDay(5000), true, nil, 0},
	}
}

// tokensOf is what the header Tokens says.
func tokensOf(r *http.Request) (int64, error) {
	return strconv.ParseInt(r.Header.Get("Tokens"), 10, 64)
}

// site is a handler behind all quotas, in one middleware.
type site struct {
	t       testing.TB
	client  *rratelimiter.Client
	calls   *limitertest.Counter
	seen    *limitertest.Recorder // by the Client's observer
	told    *limitertest.Recorder // by the middleware's
	errs    middlewaretest.Errors
	handler http.Handler
	handle  func(ctx context.Context) // what the handler does; may be nil
}

func newSite(t testing.TB, rdb redistest.Client, all []quota, opts ...httplimit.Option) *site {
	t.Helper()
	return newSiteOf(t, rdb, all, append(opts, httplimit.WithHashTag())...)
}

// newSiteOf is newSite with keys that have no hash tag in common.
func newSiteOf(t testing.TB, rdb redistest.Client, all []quota, opts ...httplimit.Option) *site {
	t.Helper()
	return newSiteWith(t, rdb, all, nil, opts...)
}

// newSiteWith is newSiteOf with an option of the Client's.
func newSiteWith(t testing.TB, rdb redistest.Client, all []quota, of rratelimiter.Option, opts ...httplimit.Option) *site {
	t.Helper()
	s := &site{t: t, seen: &limitertest.Recorder{}, told: &limitertest.Recorder{}}
	s.client = limitertest.NewClient(t, rdb, rratelimiter.WithObserver(s.seen), of)
	opts = append([]httplimit.Option{
		httplimit.WithKey(httplimit.Header("X-User")),
		httplimit.WithObserver(s.told), hearing(&s.errs), patient(),
	}, opts...)
	for _, q := range all[1:] {
		p := httplimit.Policy{Name: q.name, Limiter: s.client.Keyed("", q.rate, q.opts...)}
		if q.tokens {
			p.Cost, p.Settle, p.Hold = tokensOf, true, q.hold
		}
		opts = append(opts, httplimit.WithPolicy(p))
	}
	limits := httplimit.New(httplimit.Policy{Name: all[0].name, Limiter: s.client.Keyed("", all[0].rate, all[0].opts...)}, opts...)
	require.NoError(t, limits.Err())
	s.handler = limits.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if s.handle != nil {
			s.handle(r.Context())
		}
	}))
	s.calls = limitertest.CountCommands(rdb)
	return s
}

// ask makes a request of ann's and returns the answer.
func (s *site) ask(ctx context.Context, tokens int64) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/chat", http.NoBody)
	r.Header.Set("X-User", "ann")
	r.Header.Set("Tokens", strconv.FormatInt(tokens, 10))
	return serve(s.handler, r)
}

// left returns what is left of each of some quotas.
func (s *site) left(names ...string) (all []int64) {
	s.t.Helper()
	for _, name := range names {
		l := s.client.RateLimiter("http:" + name + ":{ann}")
		d, err := l.Peek(s.t.Context(), 0)
		require.NoError(s.t, err, name)
		all = append(all, d.Remaining)
	}
	return all
}

func (s *site) leftOfAll() []int64 {
	s.t.Helper()
	return s.left("requests-minute", "tokens-minute", "requests-day", "tokens-day")
}

// One script call decides for all policies. A request that any of them refuses is charged to none, and counts as refused by
// that policy alone.
func TestPolicies_RefusedByOneChargedToNone(t *testing.T) {
	t.Parallel()
	for i, refuser := range quotas() {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			all := quotas()
			all[i].rate.Rate = map[bool]int64{false: 2, true: 250}[refuser.tokens]
			s := newSite(t, rdb, all)
			assert.Equal(t, http.StatusOK, s.ask(t.Context(), 100).Code) // the server learns the script
			before, calls := s.leftOfAll(), s.calls.Scripts()
			w := s.ask(t.Context(), 100)
			assert.Equal(t, http.StatusOK, w.Code)
			assert.Equal(t, 1, s.calls.Scripts()-calls)
			assert.Len(t, members(t, w.Header(), "RateLimit"), 4)
			assert.Equal(t, []int64{before[0] - 1, before[1] - 100, before[2] - 1, before[3] - 100}, s.leftOfAll())
			before, calls = s.leftOfAll(), s.calls.Scripts()
			w = s.ask(t.Context(), 100)
			assert.Equal(t, http.StatusTooManyRequests, w.Code)
			assert.Equal(t, []any{refuser.name}, problem(t, w)["violated-policies"])
			assert.Equal(t, fmt.Sprint(refuser.rate.Interval.Seconds()), w.Header().Get("Retry-After"))
			assert.Equal(t, 1, s.calls.Scripts()-calls, "nothing is given back")
			assert.Equal(t, before, s.leftOfAll())
			synctest.Wait()
			for _, recorder := range []*limitertest.Recorder{s.seen, s.told} {
				var outcomes []limit.Outcome
				for _, d := range recorder.Decisions() {
					outcomes = append(outcomes, d.Outcome)
				}
				want := slices.Repeat([]limit.Outcome{limit.Granted}, 12)
				want[8+i] = limit.Refused
				assert.Equal(t, want, outcomes)
			}
		})
	}
}

// One call settles the policies that estimate. Requests keep what they were charged.
func TestSettle_SettlesPoliciesThatEstimate(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		s := newSite(t, rdb, quotas())
		for _, c := range []struct {
			estimate, used int64
			left           []int64
		}{
			{800, 50, []int64{9, 950, 99, 4950}},
			{100, 300, []int64{8, 650, 98, 4650}},
			{100, 0, []int64{7, 650, 97, 4650}},
			{100, 100, []int64{6, 550, 96, 4550}},
		} {
			s.handle = func(ctx context.Context) {
				require.NoError(t, httplimit.Settle(ctx, c.used))
				require.ErrorIs(t, httplimit.Settle(ctx, c.used), limit.ErrSettled)
			}
			assert.Equal(t, http.StatusOK, s.ask(t.Context(), c.estimate).Code)
			assert.Equal(t, c.left, s.leftOfAll())
		}
		s.errs.Check(t)
	})
}

// Policies in one call have each its own hold, and those that only count none.
func TestPolicyHold_OfPoliciesTogether(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		all := quotas()
		all[1].hold, all[3].hold = 3*time.Second, 10*time.Minute
		s := newSite(t, rdb, all)
		assert.Equal(t, http.StatusOK, s.ask(t.Context(), 200).Code)
		before := s.calls.Scripts()
		assert.Equal(t, http.StatusOK, s.ask(t.Context(), 600).Code)
		assert.Equal(t, 1, s.calls.Scripts()-before)
		assert.Equal(t, []int64{8, 200, 98, 4200}, s.leftOfAll())
		time.Sleep(4 * time.Second)
		assert.Equal(t, []int64{8, 1000, 98, 4200}, s.leftOfAll())
		time.Sleep(10 * time.Minute)
		assert.Equal(t, []int64{98, 5000}, s.left("requests-day", "tokens-day"))
	})
}

// An estimate above a limit takes that whole limit, and is settled like others. A call more finds out
// what the limit is.
func TestPolicies_EstimateAboveALimit(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		s := newSite(t, rdb, quotas())
		assert.Equal(t, http.StatusOK, s.ask(t.Context(), 0).Code) // the server learns the script
		before := s.calls.Scripts()
		s.handle = func(ctx context.Context) {
			assert.Equal(t, 2, s.calls.Scripts()-before)
			assert.Equal(t, []int64{8, 0, 98, 2000}, s.leftOfAll())
			require.NoError(t, httplimit.Settle(ctx, 4000))
		}
		w := s.ask(t.Context(), 3000)
		assert.Equal(t, http.StatusOK, w.Code)
		assert.Equal(t, []int64{8, 0, 98, 1000}, s.leftOfAll())
		d, err := s.client.RateLimiter("http:tokens-minute:{ann}").Take(t.Context(), 1)
		require.NoError(t, err)
		assert.False(t, d.Granted, "a debt")

		time.Sleep(25 * time.Hour)
		s.handle = nil
		for _, tokens := range []int64{6000, 1 << 40} {
			assert.Equal(t, http.StatusOK, s.ask(t.Context(), tokens).Code)
			assert.Equal(t, []int64{0, 0}, s.left("tokens-minute", "tokens-day"))
			assert.Equal(t, http.StatusTooManyRequests, s.ask(t.Context(), tokens).Code)
			time.Sleep(25 * time.Hour)
		}
		s.errs.Check(t)
	})
}

// A request that costs a policy more than its limit, with nothing to settle, never passes. One script call says so,
// which charges none and asks none of the others.
func TestPolicies_TooCostlyForOne(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		s := newSite(t, rdb, quotas(), httplimit.WithCost(func(r *http.Request) (int64, error) {
			n, err := tokensOf(r)
			return n / 10, err
		}))
		assert.Equal(t, http.StatusOK, s.ask(t.Context(), 10).Code) // the server learns the script
		before := s.calls.Scripts()
		w := s.ask(t.Context(), 110)
		assert.Equal(t, http.StatusTooManyRequests, w.Code)
		assert.Equal(t, 1, s.calls.Scripts()-before)
		assert.Empty(t, w.Header().Get("Retry-After"))
		assert.Equal(t, `"requests-minute";q=10;w=60`, w.Header().Get("RateLimit-Policy"))
		assert.Empty(t, w.Header().Get("RateLimit"))
		assert.Equal(t, []any{"requests-minute"}, problem(t, w)["violated-policies"])
		assert.Equal(t, []int64{9, 990, 99, 4990}, s.leftOfAll())
		synctest.Wait()
		for _, recorder := range []*limitertest.Recorder{s.seen, s.told} {
			decisions := recorder.Decisions()
			require.Len(t, decisions, 5)
			assert.Equal(t, limit.TooCostly, decisions[4].Outcome)
			require.NoError(t, decisions[4].Err)
			assert.EqualValues(t, 11, decisions[4].Permits)
		}
	})
}

// Estimates above several limits are lowered to each of them, in the time that WithTimeout allows.
func TestPolicies_EstimateAboveManyLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		var all []quota
		for _, name := range []string{"a", "b", "c", "d"} {
			all = append(all, quota{name, rratelimiter.PerMinute(10), true, nil, 0})
		}
		s := newSite(t, rdb, append(quotas()[:1], all...))
		assert.Equal(t, http.StatusOK, s.ask(t.Context(), 1).Code)
		time.Sleep(time.Minute)
		before := s.calls.Scripts()
		assert.Equal(t, http.StatusOK, s.ask(t.Context(), 20).Code)
		assert.Equal(t, 5, s.calls.Scripts()-before)
		assert.Equal(t, []int64{0, 0, 0, 0}, s.left("a", "b", "c", "d"))

		rdb.AddHook(limitertest.Slow(300 * time.Millisecond))
		start := time.Now()
		assert.Equal(t, http.StatusServiceUnavailable, s.ask(t.Context(), 20).Code)
		assert.Equal(t, httplimit.DefaultTimeout, time.Since(start))
		s.errs.Take()
	})
}

func TestPolicyCost(t *testing.T) {
	t.Parallel()
	bad := errors.New("no such model")
	for name, c := range map[string]struct {
		costs  []int64 // of WithCost, and of two policies; 0: free
		err    error
		status int
		asked  []int64
	}{
		"each its own":     {[]int64{1, 2, 3}, nil, http.StatusOK, []int64{1, 2, 3}},
		"free of one":      {[]int64{1, 0, 3}, nil, http.StatusOK, []int64{1, 0, 3}},
		"free by WithCost": {[]int64{0, 2, 3}, nil, http.StatusOK, []int64{0, 2, 3}},
		"free":             {[]int64{0, 0, -1}, nil, http.StatusOK, []int64{0, 0, 0}},
		"error":            {[]int64{1, 2, 3}, bad, http.StatusBadRequest, []int64{0, 0, 0}},
		"too large":        {[]int64{1, 2, 3}, &http.MaxBytesError{}, http.StatusRequestEntityTooLarge, []int64{0, 0, 0}},
		"misconfigured":    {[]int64{1, 2, 3}, limit.ErrInvalidConfig, http.StatusInternalServerError, []int64{0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var errs middlewaretest.Errors
			limiters := []*fake{grants(), grants(), grants()}
			costs := func(i int) func(*http.Request) (int64, error) {
				return func(*http.Request) (int64, error) {
					if i == 2 {
						return c.costs[i], c.err
					}
					return c.costs[i], nil
				}
			}
			opts := []httplimit.Option{hearing(&errs), httplimit.WithCost(costs(0))}
			for i, name := range []string{"b", "c"} {
				opts = append(opts, httplimit.WithPolicy(httplimit.Policy{Name: name, Limiter: limiters[i+1], Cost: costs(i + 1)}))
			}
			w := serve(httplimit.New(httplimit.Policy{Name: "a", Limiter: limiters[0]}, opts...).Handler(hello), newRequest(t))
			assert.Equal(t, c.status, w.Code)
			asked := make([]int64, len(limiters))
			for i, l := range limiters {
				for _, call := range l.Asked() {
					asked[i] += call.N
				}
			}
			assert.Equal(t, c.asked, asked)
			if c.status == http.StatusInternalServerError {
				errs.Check(t, c.err)
			}
			errs.Check(t)
		})
	}
}

// Each policy says whether it is settled, also one that WithCost says the cost of. A policy that can't
// be settled is found when the program starts.
func TestPolicySettle_SaysWhatIsSettled(t *testing.T) {
	t.Parallel()
	cost := func(*http.Request) (int64, error) { return 5, nil }
	limiters := map[string]*middlewaretest.Reserver{}
	opts := []httplimit.Option{httplimit.WithCost(cost)}
	for name, p := range map[string]httplimit.Policy{
		"shared": {Settle: true}, "like the first": {Settle: true}, "not": {}, "own": {Cost: cost}, "estimate": {Cost: cost, Settle: true},
	} {
		limiters[name] = &middlewaretest.Reserver{Fake: grants()}
		p.Name, p.Limiter = name, limiters[name]
		if name != "shared" {
			opts = append(opts, httplimit.WithPolicy(p))
		}
	}
	serve(httplimit.New(httplimit.Policy{Name: "shared", Limiter: limiters["shared"], Settle: true}, opts...).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		assert.NoError(t, httplimit.Settle(r.Context(), 7))
	})), newRequest(t))
	for name, l := range limiters {
		if name == "own" || name == "not" {
			assert.Empty(t, l.Settled)
		} else {
			assert.Equal(t, []int64{7}, l.Settled, name)
		}
	}

	chosen := &middlewaretest.Reserver{Fake: grants()}
	ofPlan := httplimit.Policy{
		Name: "tokens", Limiter: &middlewaretest.Reserver{Fake: grants()}, Settle: true, Plan: func(*http.Request) limit.Limiter { return chosen },
	}
	serve(httplimit.New(grants(), httplimit.WithPolicy(ofPlan)).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		assert.NoError(t, httplimit.Settle(r.Context(), 7))
	})), newRequest(t))
	assert.Equal(t, []int64{7}, chosen.Settled)

	settles := httplimit.WithPolicy(httplimit.Policy{Name: "tokens", Limiter: grants(), Settle: true})
	err := httplimit.New(grants(), settles).Err()
	require.ErrorIs(t, err, limit.ErrUnsupported)
	require.ErrorContains(t, err, `"tokens" can't be settled`)
	assert.NotContains(t, err.Error(), "default")
	require.ErrorIs(t, httplimit.NewTransport(nil, grants(), settles).Err(), limit.ErrInvalidConfig)
}

func TestDecisions(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		s := newSite(t, rdb, quotas())
		var inner, both []httplimit.Decided
		s.handle = func(ctx context.Context) {
			inner = httplimit.Decisions(ctx)
			r := newRequest(t).WithContext(ctx)
			serve(httplimit.New(httplimit.Policy{Name: "shadow", Limiter: refusing}, httplimit.WithShadow()).Handler(http.HandlerFunc(
				func(_ http.ResponseWriter, r *http.Request) { both = httplimit.Decisions(r.Context()) })), r)
		}
		assert.Equal(t, http.StatusOK, s.ask(t.Context(), 300).Code)
		var remaining []int64
		for i, d := range inner {
			assert.Equal(t, quotas()[i].name, d.Name)
			assert.True(t, d.Granted)
			assert.Equal(t, quotas()[i].rate.Rate, d.Limit)
			remaining = append(remaining, d.Remaining)
		}
		assert.Equal(t, []int64{9, 700, 99, 4700}, remaining)
		require.Len(t, both, 5)
		assert.Equal(t, inner, both[:4])
		assert.Equal(t, httplimit.Decided{Name: "shadow", Decision: limit.Decision{Limit: 1, RetryAfter: time.Second}}, both[4])
		assert.Empty(t, httplimit.Decisions(t.Context()))
	})
	skipped := httplimit.New(grants(), httplimit.WithSkip(func(*http.Request) bool { return true }))
	serve(skipped.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		assert.Empty(t, httplimit.Decisions(r.Context()))
	})), newRequest(t))
}

// Policies that are asked together answer as those that are not: the same verdicts and headers, whatever
// requests come and what they are settled with.
func TestPolicies_TogetherAsAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) [3]int64 {
			return [3]int64{rapid.Int64Range(1, 1200).Draw(r, "estimate"), rapid.Int64Range(-1, 1200).Draw(r, "used"), rapid.Int64Range(0, 40).Draw(r, "pause")}
		}), 1, 12).Draw(r, "steps")
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			all := quotas()
			all[0].rate.Type = rratelimiter.PerClient
			all[3].rate.Rate = 3000
			together, alone := newSite(t, rdb, all), newSiteOf(t, rdb, all)
			for _, step := range steps {
				var got [2]string
				for i, s := range []*site{together, alone} {
					s.handle = func(ctx context.Context) {
						if step[1] >= 0 {
							assert.NoError(t, httplimit.Settle(ctx, step[1]))
						}
					}
					w := s.ask(t.Context(), step[0])
					got[i] = strconv.Itoa(w.Code) + w.Header().Get("RateLimit") + w.Header().Get("RateLimit-Policy") + w.Header().Get("Retry-After") + w.Body.String()
				}
				assert.Equal(t, got[1], got[0])
				time.Sleep(time.Duration(step[2]) * time.Second)
			}
		})
	})
}

// Limiters that can't go together are asked at the same time, and a request is still charged to all or none.
func TestPolicies_OfSeveralKindsAndClients(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		other := limitertest.NewClient(t, rdb)
		extra := func(name string, l limit.Limiter) httplimit.Option {
			return httplimit.WithPolicy(httplimit.Policy{Name: name, Limiter: l, Cost: tokensOf})
		}
		s := newSite(t, rdb, quotas(),
			extra("other", other.Keyed("", rratelimiter.PerMinute(900))),
			extra("log", slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: 800, Window: time.Minute})),
			extra("window", fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 700, Window: time.Minute})),
			httplimit.WithPolicy(httplimit.Policy{Name: "address", Limiter: grants(), Key: []httplimit.KeyFunc{httplimit.ClientIP(httplimit.ClientIPConfig{})}}),
		)
		assert.Equal(t, http.StatusOK, s.ask(t.Context(), 500).Code)
		before := s.calls.Scripts()
		assert.Equal(t, http.StatusOK, s.ask(t.Context(), 0).Code)
		assert.Equal(t, 1, s.calls.Scripts()-before, "those of one Client that it costs something")
		before = s.calls.Scripts()
		assert.Equal(t, http.StatusOK, s.ask(t.Context(), 1).Code)
		assert.Equal(t, 4, s.calls.Scripts()-before, "and one for each other limiter")
		want := append([]int64{399}, s.leftOfAll()...)
		for range 3 {
			w := s.ask(t.Context(), 250)
			assert.Equal(t, http.StatusTooManyRequests, w.Code)
			assert.Equal(t, []any{"window"}, problem(t, w)["violated-policies"])
			assert.Equal(t, want, s.left("other", "requests-minute", "tokens-minute", "requests-day", "tokens-day"))
		}
		assert.Equal(t, http.StatusOK, s.ask(t.Context(), 199).Code, "nothing stays taken of the log")
	})
}

// Whichever Redisson shares the limiters, a request is charged to all policies or to none. Those before 3.13.3 keep
// fixed windows, which can't go together, nor be settled.
func TestPolicies_BesideEachRedisson(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"3.12.0", "3.13.3", "3.16.4", "3.17.0", "3.21.0", "4.7.0"} {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			s := newSiteWith(t, rdb, quotas(), rratelimiter.WithRedissonVersion(version), httplimit.WithHashTag())
			var settled error
			s.handle = func(ctx context.Context) { settled = httplimit.Settle(ctx, 400) }
			assert.Equal(t, http.StatusOK, s.ask(t.Context(), 600).Code)
			tokens := int64(600)
			if version == "3.12.0" {
				require.ErrorIs(t, settled, limit.ErrUnsupported)
			} else {
				require.NoError(t, settled)
				tokens = 400
			}
			want := []int64{9, 1000 - tokens, 99, 5000 - tokens}
			assert.Equal(t, want, s.leftOfAll(), version)
			before := s.calls.Scripts()
			assert.Equal(t, http.StatusTooManyRequests, s.ask(t.Context(), 700).Code)
			if version != "3.12.0" {
				assert.Equal(t, 1, s.calls.Scripts()-before)
				assert.Equal(t, want, s.leftOfAll(), version)
			}
		})
	}
}

// A transport asks its policies together too, and waits until all have permits.
func TestTransport_PoliciesTogether(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		transport := httplimit.NewTransport(answers(http.StatusNoContent),
			httplimit.Policy{Name: "second", Limiter: client.Keyed("", rratelimiter.PerSecond(2))}, httplimit.WithHashTag(),
			httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: client.Keyed("", rratelimiter.PerHour(5))}))
		calls := limitertest.CountCommands(rdb)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for i := range 6 {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.org/", http.NoBody)
			require.NoError(t, err)
			before, start := calls.Scripts(), time.Now()
			_, err = transport.RoundTrip(r) //nolint:bodyclose // it has none
			switch {
			case i < 5:
				require.NoError(t, err)
				assert.Equal(t, i == 2 || i == 4, time.Since(start) > 500*time.Millisecond, "request %d", i)
			default:
				var no *httplimit.NotSentError
				require.ErrorAs(t, err, &no)
				assert.Equal(t, "upstream:hour:{api.example.org}", no.Key)
				assert.Less(t, time.Since(start), time.Second, "it is known to be too long")
			}
			if i == 1 || i == 5 {
				assert.Equal(t, 1, calls.Scripts()-before, "request %d", i)
			}
		}
	})
}
