package middleware_test

import (
	"cmp"
	"context"
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

// ask makes a request and returns the answers.
func (s *site) ask(ctx context.Context, r request) (middleware.Verdict, []middleware.Question) {
	s.t.Helper()
	questions, err := s.Questions(r)
	require.NoError(s.t, err)
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

// refusers are the names of the policies that have refused.
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
	took    time.Duration // with its handler; 0: any time
	calls   int           // of Redis for the decision; 0: any number
	during  []int64       // what is left while it is handled; nil: anything
	handle  func(*chat)   // what happens then; nil: nothing
	settle  []int64       // what the handler settles it with; nil: it does not
	cannot  error         // of settling
	left    []int64       // afterwards; nil: anything, unknown: anything of that policy
}

// run makes the request of a step.
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
		assert.Equal(c.t, s.wait, middleware.RetryAfter(middleware.Live(questions)).Round(time.Second), name)
	}
	return questions
}

// check compares what is left with what should be.
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

// outcomes are those that an observer has received since the last time.
func outcomes(r *limitertest.Recorder) (all []limit.Outcome) {
	synctest.Wait()
	for _, d := range r.Decisions() {
		all = append(all, d.Outcome)
	}
	return all
}
