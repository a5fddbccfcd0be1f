package middleware_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// server is a limiter that hangs from time to time, and counts what it is asked.
type server struct {
	heeds   bool          // its context
	fails   bool          // rather than to hang
	takes   time.Duration // to answer
	limits  map[string]int64
	refuses bool
	err     error

	hangs    atomic.Bool
	asked    atomic.Int64
	underWay atomic.Int64
	returned atomic.Int64
}

func (s *server) Take(ctx context.Context, key string, n int64) (limit.Decision, error) {
	d, _, err := s.TakeReturnable(ctx, key, n)
	return d, err
}

func (s *server) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	s.asked.Add(1)
	s.underWay.Add(1)
	defer s.underWay.Add(-1)
	time.Sleep(s.takes)
	for s.hangs.Load() {
		if s.fails {
			return limit.Decision{}, nil, limit.ErrUnavailable
		}
		time.Sleep(10 * time.Millisecond)
		if s.heeds && ctx.Err() != nil {
			return limit.Decision{}, nil, ctx.Err()
		}
	}
	if s.err != nil {
		return limit.Decision{}, nil, s.err
	}
	most := int64(10)
	if l, ok := s.limits[strings.TrimPrefix(key, "test:")]; ok {
		most = l
	}
	if s.refuses || n > most {
		return limit.Decision{Limit: most, RetryAfter: time.Second}, nil, nil
	}
	return limit.Decision{Granted: true, Limit: most, Remaining: most - n}, func(context.Context) error {
		s.returned.Add(n)
		return nil
	}, nil
}

// Acquire and Release are of a limiter that waits for permits itself.
func (s *server) Acquire(ctx context.Context, key string, n int64) error {
	return limitertest.Second(s.Take(ctx, key, n))
}

func (s *server) Release(_ context.Context, _ string, n int64) error {
	s.returned.Add(n)
	return nil
}

// asking asks for permits of a key, as middleware does, and says how long that took.
type asking = func(ctx context.Context, key string, n int64) (middleware.Question, time.Duration)

// escaped runs a test with a limiter that has a policy.
func escaped(t *testing.T, f limit.Failure, s *server, test func(t *testing.T, say asking, recorder *limitertest.Recorder)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		of := newSite(t, []policy{{Terms: middleware.Terms{Name: "test", Limiter: s, Length: time.Minute}, Cost: tokensOf}},
			option((*middleware.Options).SetFailure, f))
		test(t, func(ctx context.Context, key string, n int64) (middleware.Question, time.Duration) {
			start := time.Now()
			_, questions := of.ask(ctx, request{user: key, tokens: n})
			return questions[0], time.Since(start)
		}, &of.told)
		s.hangs.Store(false)
		time.Sleep(time.Minute)
	})
}

// All limiters behave alike while Redis is away, also one of another module, and one that waits for permits itself: see
// [middlewaretest.Outages].
func TestOutages(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"keyed", "fixedwindow", "slidinglog", "tokenbucket", "foreign", "waits"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			middlewaretest.Outages(t, middlewaretest.Guarded{
				Fallbacks: true, Foreign: name == "foreign",
				Open: func(t *testing.T, rdb redistest.Client, how middlewaretest.Instead, told func(error)) middlewaretest.Asking {
					t.Helper()
					all := middlewaretest.Limiters(limitertest.NewClient(t, rdb), 8, time.Hour)
					all["foreign"], all["waits"] = middlewaretest.Windowed{Limiter: all["keyed"], Span: time.Hour}, all["keyed"]
					policies := named(all[name])
					policies[0].Fallback = how.Fallback
					s := newSite(t, policies, func(p *middleware.Policies[request]) { p.Failure = how.Failure })
					return func(ctx context.Context) (bool, error) {
						questions, err := s.Questions(request{})
						require.NoError(t, err)
						var v middleware.Verdict
						if name == "waits" {
							questions[0].AskAndWait(ctx, 10*time.Millisecond, false)
							v = s.Judge(questions)
						} else {
							v = s.AskAll(ctx, questions)
						}
						if v.News != nil {
							assert.NotContains(t, v.News.Error(), "TakeReturnable", "which only middleware calls")
							told(v.News)
						}
						if v.Closed {
							return false, v.Failure
						}
						return !v.Refused, nil
					}
				},
			})
		})
	}
}

// A limiter that hangs costs three requests the timeout, and others next to nothing;
// it is asked by one at a time until it answers.
func TestBreaker(t *testing.T) {
	t.Parallel()
	for _, heeds := range []bool{true, false} {
		s := &server{heeds: heeds}
		escaped(t, limit.FailOpen(), s, func(t *testing.T, say asking, recorder *limitertest.Recorder) {
			q, _ := say(t.Context(), "k", 1)
			assert.Equal(t, middleware.Granted, q.State)
			s.hangs.Store(true)
			for range 3 {
				q, took := say(t.Context(), "k", 1)
				assert.Equal(t, middleware.Open, q.State)
				assert.Equal(t, time.Second, took)
			}
			before := s.asked.Load()
			for range 1000 {
				q, took := say(t.Context(), "k", 1)
				assert.Equal(t, middleware.Open, q.State)
				require.ErrorIs(t, q.Failure, limit.ErrUnavailable)
				assert.LessOrEqual(t, took, 5*time.Millisecond)
				if heeds {
					assert.LessOrEqual(t, s.underWay.Load(), int64(2), "what ended just now besides")
				}
				time.Sleep(10 * time.Millisecond)
			}
			assert.InDelta(t, 6, s.asked.Load()-before, 2, "a probe takes a second, and then a second passes")
			s.hangs.Store(false)
			time.Sleep(2 * time.Second)
			q, took := say(t.Context(), "k", 1)
			assert.Equal(t, middleware.Granted, q.State)
			assert.Zero(t, took, "a probe that is answered at once is an answer")
			synctest.Wait()
			var told []any
			for _, e := range recorder.Events() {
				told = append(told, e.Kind, e.Limiter)
			}
			assert.Equal(t, []any{limit.AskedNoMore, "test", limit.AskedAgain, "test"}, told)
		})
	}
}

// If the answer to a probe takes long, the policy answers that request, which gives
// back what it was granted; the next ones ask the limiter again.
func TestSlowProbe(t *testing.T) {
	t.Parallel()
	s := &server{takes: 30 * time.Millisecond, heeds: true}
	escaped(t, limit.FailOpen(), s, func(t *testing.T, say asking, _ *limitertest.Recorder) {
		s.hangs.Store(true)
		for range 3 {
			_, _ = say(t.Context(), "k", 1)
		}
		s.hangs.Store(false)
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		q, took := say(ctx, "k", 4)
		cancel() // the request is over before its probe
		assert.Equal(t, middleware.Open, q.State)
		assert.Equal(t, 5*time.Millisecond, took)
		time.Sleep(time.Second)
		assert.EqualValues(t, 4, s.returned.Load())
		q, took = say(t.Context(), "k", 4)
		assert.Equal(t, middleware.Granted, q.State)
		assert.Equal(t, 30*time.Millisecond, took)
	})
}

// What a limiter says, mistakes and requests that are given up do not make it one that
// is asked no more. A request's deadline does if the limiter had its time.
func TestBreaker_WhatCountsAsFailure(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	type row struct {
		server *server
		hangs  bool
		in     time.Duration // the request's deadline; below 0, when its caller goes
		counts bool
	}
	limitertest.Each(t, map[string]row{
		"refusals":          {server: &server{refuses: true}},
		"too costly":        {server: &server{err: limit.ErrPermitsExceedRate}},
		"misconfigured":     {server: &server{err: limit.ErrInvalidConfig}},
		"corrupt":           {server: &server{err: limit.ErrCorrupt}},
		"unavailable":       {server: &server{err: limit.ErrUnavailable}, counts: true},
		"another's error":   {server: &server{err: errors.New("no")}, counts: true},
		"timeout":           {server: &server{}, hangs: true, counts: true},
		"deadline":          {server: &server{}, hangs: true, in: 60 * ms, counts: true},
		"short deadlines":   {server: &server{}, hangs: true, in: 10 * ms, counts: true},
		"hardly any time":   {server: &server{takes: 40 * ms}, hangs: true, in: 10 * ms},
		"the caller leaves": {server: &server{}, hangs: true, in: -100 * ms},
	}, func(t *testing.T, c row) {
		escaped(t, limit.FailClosed(), c.server, func(t *testing.T, say asking, _ *limitertest.Recorder) {
			_, _ = say(t.Context(), "k", 1)
			c.server.asked.Store(0)
			c.server.hangs.Store(c.hangs)
			for range 10 {
				ctx, cancel := middlewaretest.Ending(t.Context(), c.in)
				_, _ = say(ctx, "k", 1)
				cancel()
			}
			if c.counts {
				assert.Less(t, c.server.asked.Load(), int64(10))
			} else {
				assert.EqualValues(t, 10, c.server.asked.Load())
			}
		})
	})
}

// A local limiter has its share of the limit reported for a key, and for a key without a
// report, of the limit reported last.
func TestFailLocal(t *testing.T) {
	t.Parallel()
	s := &server{heeds: true, limits: map[string]int64{"large": 100, "none": 0, "one": 1}}
	escaped(t, limit.FailLocal(0.5), s, func(t *testing.T, say asking, recorder *limitertest.Recorder) {
		s.hangs.Store(true)
		q, _ := say(t.Context(), "large", 1)
		assert.Equal(t, middleware.Closed, q.State, "nothing is known")
		s.hangs.Store(false)
		for _, key := range []string{"large", "none", "one", "small"} {
			_, _ = say(t.Context(), key, 1)
		}
		s.hangs.Store(true)
		for range 3 {
			_, _ = say(t.Context(), "warm", 1)
		}
		for key, want := range map[string]int{"large": 50, "small": 5, "other": 5, "one": 1, "none": 0} {
			granted := 0
			for range 60 {
				if q, _ := say(t.Context(), key, 1); q.State == middleware.Granted {
					granted++
				} else {
					assert.Equal(t, middleware.Refused, q.State)
				}
			}
			assert.Equal(t, want, granted, key)
		}
		q, _ = say(t.Context(), "more", 6)
		assert.Equal(t, middleware.Refused, q.State)
		assert.Equal(t, limit.Decision{Limit: 5, RetryAfter: time.Second}, q.Decision, "the limiter may have them")
		time.Sleep(time.Minute)
		q, _ = say(t.Context(), "small", 1)
		assert.Equal(t, middleware.Granted, q.State)
		require.NoError(t, q.GiveBack(t.Context()))
		q, _ = say(t.Context(), "one", 1)
		assert.Equal(t, middleware.Refused, q.State, "one permit in two minutes")
		all := recorder.Decisions()
		assert.Equal(t, limit.FromLocal, all[len(all)-1].Source)
		assert.Equal(t, limit.Refused, all[len(all)-1].Outcome)
	})
}

// A caller that waits for a limiter of another module goes back to it once it decides again.
func TestAskAndWait_GoesBackToTheLimiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, refusing := &server{fails: true, takes: 10 * time.Millisecond}, &server{refuses: true}
		w.hangs.Store(true)
		o := &middleware.Options{Middleware: "test", Timeout: time.Second}
		require.NoError(t, o.SetFallback(refusing))
		l, err := o.Limit(middleware.Terms{Name: "test", Limiter: w})
		require.NoError(t, err)
		require.True(t, l.WaitsItself())
		q := l.Question("k", "k", 1)
		q.AskAndWait(t.Context(), 2*time.Second, false)
		assert.Equal(t, middleware.Refused, q.State, "by the fallback, all the time")
		assert.Greater(t, refusing.asked.Load(), int64(2))

		time.AfterFunc(time.Second, func() { w.hangs.Store(false) })
		start := time.Now()
		q = l.Question("k", "k", 1)
		q.AskAndWait(t.Context(), 0, false)
		require.Equal(t, middleware.Open, q.State, "it has permits, and no figures")
		assert.LessOrEqual(t, time.Since(start), 5*time.Second)
		synctest.Wait()
		before := w.returned.Load() // what its probe got
		require.NoError(t, q.GiveBack(t.Context()))
		assert.Equal(t, before+1, w.returned.Load())
	})
}

// reserved asks for 3 permits and returns the context of the handler. The fallback may be nil.
func reserved(t *testing.T, limiter, fallback limit.Limiter) context.Context {
	t.Helper()
	s := newSite(t, []policy{{Terms: middleware.Terms{Name: "test", Limiter: limiter, Fallback: fallback, Settle: true}, Cost: tokensOf}})
	handled := make(chan context.Context, 1)
	s.handle = func(ctx context.Context) { handled <- ctx }
	s.ask(t.Context(), request{user: "k", tokens: 3})
	return <-handled
}

// What a fallback has granted is settled as often as its own grants are, whatever it stands in for.
func TestSettle_OfAFallback(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		var lost atomic.Bool
		rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, send func() error) error {
			if err := send(); !lost.Load() {
				return err
			}
			return redistest.Fail(cmds, errors.New("the answer is lost"))
		}))
		fallback := fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 100, Window: time.Hour})
		down := &middlewaretest.Reserver{Fake: middlewaretest.Says(limit.Decision{}, limit.ErrUnavailable)}
		require.NoError(t, middleware.Settle(reserved(t, down, fallback), 13), "the server knows the scripts from here on")

		ctx := reserved(t, down, fallback)
		lost.Store(true)
		require.ErrorIs(t, middleware.Settle(ctx, 13), limit.ErrUnknownOutcome)
		lost.Store(false)
		require.ErrorIs(t, middleware.Settle(ctx, 13), limit.ErrSettled, "a count can't show whether that was charged")
		d, err := fallback.Take(t.Context(), "test:k", 1)
		require.NoError(t, err)
		assert.EqualValues(t, 100-13-13-1, d.Remaining)
	})
}
