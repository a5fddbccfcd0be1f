package middleware_test

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// request is what policies are asked about: a user's, of so many tokens, which ends with a status.
type request struct {
	user   string
	tokens int64
	status int
}

type (
	policy  = middleware.Policy[request]
	options = []func(*middleware.Policies[request])
	keys    = []func(request) (string, error)
)

func tokensOf(r request) (int64, error) { return r.tokens, nil }

// site is a handler behind policies, as transports have it.
type site struct {
	middleware.Policies[request]

	t      *testing.T
	told   limitertest.Recorder // the sites' observer
	errs   redistest.List[error]
	handle func(ctx context.Context) // may be nil
}

// newSite returns a site of these policies. Its options can be changed by opts before.
func newSite(t *testing.T, policies []policy, opts ...func(*middleware.Policies[request])) *site {
	t.Helper()
	s := &site{t: t}
	s.Middleware, s.Prefix, s.Timeout = "test", "test:", redistest.Patience(time.Second)
	s.Keys = keys{func(r request) (string, error) { return r.user, nil }}
	require.NoError(t, s.SetObserver(&s.told))
	for _, opt := range opts {
		opt(&s.Policies)
	}
	require.NoError(t, s.SetPolicies(policies))
	require.NoError(t, s.Err())
	return s
}

// option returns an option of newSite that can't be bad.
func option[V any](set func(*middleware.Options, V) error, value V) func(*middleware.Policies[request]) {
	return func(p *middleware.Policies[request]) {
		if err := set(&p.Options, value); err != nil {
			panic(err)
		}
	}
}

func shadowed(p *middleware.Policies[request]) { p.Shadow = true }
func tagged(p *middleware.Policies[request])   { p.Tagged = true }

func (s *site) ask(ctx context.Context, r request) (middleware.Verdict, []middleware.Question) {
	s.t.Helper()
	questions := limitertest.Must(s.Questions(r))(s.t)
	v := s.AskAll(ctx, questions)
	v.Report(ctx, questions)
	if v.News != nil && !v.Gone {
		s.errs.Add(v.News)
	}
	if !s.Shadow && (v.Refused || v.Closed || v.Gone) {
		return v, questions
	}
	ctx, record := middleware.WithRecord(ctx, s.Settles(), s.Charges())
	record.Set(questions)
	end := s.Begin(ctx, r, questions, s.errs.Add)
	if s.handle != nil {
		s.handle(ctx)
	}
	if end != nil {
		end(r.status)
	}
	return v, questions
}

func refusers(questions []middleware.Question) string {
	var names []string
	for _, q := range middleware.Live(questions) {
		if q.Refused() {
			names = append(names, q.Limit.Name)
		}
	}
	return strings.Join(names, ", ")
}

// quota is a limit of a user: its policy's name, and whether it counts tokens.
type quota struct {
	name   string
	rate   rratelimiter.Config
	tokens bool
	opts   []rratelimiter.LimiterOption
	terms  middleware.Terms // besides its name and limiter
}

// quotas are what the services of language models limit.
func quotas() []quota {
	return []quota{
		{name: "requests-minute", rate: rratelimiter.PerMinute(10)}, {name: "tokens-minute", rate: rratelimiter.PerMinute(1000), tokens: true},
		{name: "requests-day", rate: rratelimiter.PerDay(100)}, {name: "tokens-day", rate: rratelimiter.PerDay(5000), tokens: true},
	}
}

// failing is what becomes of calls in an outage, in place of next.
type failing func(cmds []redis.Cmder, next func() error) error

// chat is a site behind quotas of one Client, whose keys share a hash tag.
type chat struct {
	*site

	rdb      redistest.Client
	client   *rratelimiter.Client
	policies []policy
	calls    *limitertest.Counter  // of Redis
	own      *limitertest.Recorder // the Client's observer
	outage   atomic.Pointer[failing]
}

// chatOptions are what a chat has besides quotas.
type chatOptions struct {
	client rratelimiter.Option
	more   func(t *testing.T, rdb redistest.Client) []policy
	site   options
}

func newChat(t *testing.T, rdb redistest.Client, all []quota, opts chatOptions) *chat {
	t.Helper()
	c := &chat{rdb: rdb, own: &limitertest.Recorder{}}
	rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if fail := c.outage.Load(); fail != nil {
			return (*fail)(cmds, next)
		}
		return next()
	}))
	c.client = limitertest.NewClient(t, rdb, rratelimiter.WithObserver(c.own), opts.client)
	for _, q := range all {
		p := policy{Terms: q.terms}
		p.Name, p.Limiter = q.name, c.client.Keyed("", q.rate, q.opts...)
		if q.tokens {
			p.Cost, p.Settle = tokensOf, true
		}
		c.policies = append(c.policies, p)
	}
	if opts.more != nil {
		c.policies = append(c.policies, opts.more(t, rdb)...)
	}
	for i := range c.policies {
		c.policies[i].Prefix = "test:" + c.policies[i].Name + ":" // also if there is one
	}
	c.site = newSite(t, c.policies, append(options{tagged}, opts.site...)...)
	c.calls = limitertest.CountCommands(rdb)
	return c
}

// unknown is what is left of a limiter that does not say it.
const unknown = -1

// left is what is left of each policy, or unknown.
func (c *chat) left() (all []int64) {
	c.t.Helper()
	for _, p := range c.policies {
		left := int64(unknown)
		if peeker, ok := p.Limiter.(interface {
			Peek(ctx context.Context, key string, n int64) (limit.Decision, error)
		}); ok {
			if d, err := peeker.Peek(c.t.Context(), "test:"+p.Name+":{ann}", 0); err == nil {
				left = d.Remaining
			}
		}
		all = append(all, left)
	}
	return all
}

// step is one request of ann's, so long after the one before.
type step struct {
	after  time.Duration
	do     func(*chat) // before
	tokens int64
	status int
	look   bool // there is no request

	refused string        // by these policies
	shadows string        // and by these in shadow
	closed  error         // nil: it passes, or is refused
	wait    time.Duration // of a refusal
	round   time.Duration // what it is rounded to; 0: a second
	took    time.Duration // with its handler; 0: any time
	calls   int           // of Redis for the decision; 0: any number
	during  []int64       // what is left while it is handled; nil: anything
	handle  func(*chat)   // what happens then; nil: nothing
	settle  []int64       // what the handler settles it with; nil: it does not
	cannot  error         // of settling
	left    []int64       // afterwards; nil: anything, unknown: anything of that policy
}

func (c *chat) run(s step, name string) (questions []middleware.Question) {
	c.t.Helper()
	time.Sleep(s.after)
	if s.do != nil {
		s.do(c)
	}
	if !s.look {
		questions = c.request(s, name)
	}
	c.check(s.left, name)
	return questions
}

func (c *chat) request(s step, name string) []middleware.Question {
	c.t.Helper()
	before := c.calls.Scripts()
	decided := sync.OnceFunc(func() {
		if s.calls > 0 {
			assert.Equal(c.t, s.calls, c.calls.Scripts()-before, name)
		}
	})
	c.handle = func(ctx context.Context) {
		decided()
		c.check(s.during, name)
		middleware.Decisions(ctx, func(of string, d limit.Decision) {
			assert.Equal(c.t, !strings.Contains(s.refused+s.shadows, of), d.Granted, "%s, %s", name, of)
		})
		for _, used := range s.settle {
			again := cmp.Or(s.cannot, limit.ErrSettled)
			require.ErrorIs(c.t, middleware.Settle(ctx, used), s.cannot, name)
			require.ErrorIs(c.t, middleware.Settle(ctx, used), again, name)
		}
		if s.handle != nil {
			s.handle(c)
		}
	}
	start := time.Now()
	v, questions := c.ask(c.t.Context(), request{user: "ann", tokens: s.tokens, status: s.status})
	if took := time.Since(start); s.took > 0 {
		assert.Equal(c.t, s.took, took, name)
	}
	c.handle = nil
	decided()
	assert.Equal(c.t, s.refused, refusers(questions), name)
	assert.Equal(c.t, s.closed != nil, v.Closed, "%s: %v", name, v.Failure)
	if s.closed != nil {
		require.ErrorIs(c.t, v.Failure, s.closed, name)
	}
	if s.refused != "" {
		assert.Equal(c.t, s.wait, middleware.RetryAfter(middleware.Live(questions)).Round(cmp.Or(s.round, time.Second)), name)
	}
	return questions
}

func (c *chat) check(want []int64, name string) {
	c.t.Helper()
	if want == nil {
		return
	}
	got := c.left()
	for i, n := range want {
		if n == unknown {
			got[i] = unknown
		}
	}
	assert.Equal(c.t, want, got, name)
}

// fails lets calls of Redis fail from now on; of nil they don't.
func fails(by *failing) func(*chat) { return func(c *chat) { c.outage.Store(by) } }

func outcomes(r *limitertest.Recorder) (all []limit.Outcome) {
	synctest.Wait()
	for _, d := range r.Decisions() {
		all = append(all, d.Outcome)
	}
	return all
}

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

// All limiters behave alike while Redis is away, also one of another module, and one that waits by itself: see [middlewaretest.Outages].
func TestOutages(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, limitertest.Rows("keyed", "fixedwindow", "slidinglog", "tokenbucket", "foreign", "waits"), func(t *testing.T, name string) {
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
					questions := limitertest.Must(s.Questions(request{}))(t)
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

func TestAskAndWait_MeetsAnOutageOnce(t *testing.T) {
	t.Parallel()
	rdb, m := redistest.Mini(t)
	m.SetError("ERR broken")
	sent := limitertest.CountCommands(rdb)
	for _, settle := range []bool{false, true} {
		limiter := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerHour(1))
		l := limitertest.Must(new(middleware.Options).Limit(middleware.Terms{Name: "test", Limiter: limiter, Settle: settle}))(t)
		q, before := l.Question("k", "k", 1), sent.Scripts()
		q.AskAndWait(t.Context(), 0, false)
		require.ErrorContains(t, q.Failure, "broken")
		assert.LessOrEqual(t, sent.Scripts()-before, 7, "the attempts of one call")
	}
}

func TestOutage_WrappedLimiterHasAPolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error { return down(cmds, next) }))
		keyed := limitertest.NewClient(t, rdb, rratelimiter.WithFailure(limit.FailClosed())).Keyed("", rratelimiter.PerHour(8))
		s := newSite(t, named(middlewaretest.Windowed{Limiter: keyed, Span: time.Hour}))
		for range 10 {
			v, _ := s.ask(t.Context(), request{})
			assert.True(t, v.Closed)
		}
		assert.Len(t, s.errs.Take(), 3)
	})
}

// A limiter that hangs costs three requests the timeout, and others next to nothing; it is asked by one at a time until it answers.
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

// A local limiter has its share of the limit reported for a key, and for a key without a report, of the limit reported last.
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
