package middleware_test

import (
	"context"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// down makes calls of Redis fail, and hung after a while.
var (
	down failing = func(cmds []redis.Cmder, _ func() error) error {
		return redistest.Fail(cmds, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
	}
	hung failing = func(cmds []redis.Cmder, _ func() error) error {
		time.Sleep(3 * time.Second)
		return redistest.Fail(cmds, context.DeadlineExceeded)
	}
)

// onMini returns a chat on a miniredis.
func onMini(t *testing.T, all []quota, opts ...func(*middleware.Policies[request])) *chat {
	t.Helper()
	rdb, _ := redistest.Mini(t)
	return newChat(t, rdb, all, chatOptions{site: opts})
}

// with gives quotas an outage policy each; of nil they have none.
func with(failures ...*limit.Failure) []quota {
	all := quotas()
	for i, f := range failures {
		if f != nil {
			all[i].opts = []rratelimiter.LimiterOption{rratelimiter.WithFailure(*f)}
		}
	}
	return all
}

var (
	failsOpen  = option((*middleware.Options).SetFailure, limit.FailOpen())
	failsLocal = option((*middleware.Options).SetFailure, limit.FailLocal(0.5))
)

// failsTo returns the option of a fallback of 500 a minute.
func failsTo() func(*middleware.Policies[request]) {
	return option((*middleware.Options).SetFallback, httplimit.Local(500, time.Minute))
}

// While Redis does not decide, each policy answers by its own rule, and a local refusal costs the others nothing.
func TestPolicies_EachHasItsOutagePolicy(t *testing.T) {
	t.Parallel()
	open, local, closed := new(limit.FailOpen()), new(limit.FailLocal(0.5)), new(limit.FailClosed())
	const both = "tokens-minute, tokens-day"
	type row struct {
		of      []quota
		opt     func(*middleware.Policies[request])
		passes  int    // how many requests, of five; they are of 250 tokens
		refused string // by which policies the rest is; "": it is closed
	}
	limitertest.Bubbles(t, map[string]row{
		"none":                {of: quotas()},
		"all open":            {of: with(open, open, open, open), passes: 5},
		"the option":          {of: quotas(), opt: failsOpen, passes: 5},
		"local":               {of: with(local, local, local, local), passes: 2, refused: "tokens-minute"},
		"open and local":      {of: with(open, local, open, open), passes: 2, refused: "tokens-minute"},
		"one closes":          {of: with(open, open, closed, open)},
		"one has no policy":   {of: with(open, open, nil, open)},
		"the option for rest": {of: with(nil, local), opt: failsOpen, passes: 2, refused: "tokens-minute"},
		"a fallback":          {of: quotas(), opt: failsTo(), passes: 2, refused: both},
	}, func(t *testing.T, row row) {
		var opts options
		if row.opt != nil {
			opts = append(opts, row.opt)
		}
		c := onMini(t, row.of, opts...)
		ask := step{tokens: 250, settle: []int64{250}}
		c.run(ask, "before")
		time.Sleep(time.Second) // for the limits to be known
		charged := c.left()
		c.outage.Store(&down)
		no := step{tokens: 250, refused: row.refused, wait: time.Minute}
		if row.refused == "" {
			no = step{tokens: 250, closed: limit.ErrUnavailable}
		}
		for i := range 5 {
			if i < row.passes {
				c.run(ask, "passes")
			} else {
				c.run(no, "does not")
			}
		}
		c.errs.Take()
		c.outage.Store(nil)
		c.run(step{after: 2 * time.Second, look: true, left: charged}, "nothing was charged")
		before := c.calls.Scripts()
		_, _ = c.ask(t.Context(), request{user: "ann", tokens: 250}) // it may be the probe
		c.run(step{after: time.Second, tokens: 250, settle: []int64{250}}, "Redis decides again")
		assert.Greater(t, c.calls.Scripts(), before)
	})
}

// An estimate above what answers in Redis' place takes all of that, whether the policies are asked together or not.
func TestPolicies_EstimateAboveTheLocalLimit(t *testing.T) {
	t.Parallel()
	for _, local := range []bool{true, false} {
		for _, together := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				opt := failsTo()
				if local {
					opt = failsLocal
				}
				c := onMini(t, quotas(), opt, func(p *middleware.Policies[request]) { p.Tagged = together })
				c.run(step{tokens: 1}, "before")
				time.Sleep(time.Minute)
				c.outage.Store(&down)
				c.own.Decisions()
				questions := c.run(step{tokens: 800, settle: []int64{10}}, "above")
				assert.Len(t, c.own.Decisions(), 4, "each limiter answers the request once")
				assert.Equal(t, []int64{500, 0}, []int64{questions[1].Permits, questions[1].Decision.Remaining})
				v, _ := c.ask(t.Context(), request{user: "ann", tokens: 800})
				assert.True(t, v.Refused)
			})
		}
	}
}

// The fallbacks of all policies have their time at once. If one panics, what others granted is given back.
func TestPolicies_FallbacksAtTheSameTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		const takes = 900 * time.Millisecond
		local, slow := httplimit.Local(10, time.Hour), &middlewaretest.Fake{Answer: func(_ context.Context, n int64) (limit.Decision, error) {
			time.Sleep(takes)
			if n > 1 {
				panic("a fallback that counts no tokens")
			}
			return limit.Decision{Granted: true, Limit: 9, Remaining: 8}, nil
		}}
		c := newChat(t, rdb, quotas(), chatOptions{
			site: options{option((*middleware.Options).SetFallback, limit.Limiter(slow))},
			more: func(t *testing.T, rdb redistest.Client) []policy {
				limiter := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerMinute(5))
				return []policy{{Terms: middleware.Terms{Name: "other", Limiter: limiter, Fallback: local}}}
			},
		})
		c.outage.Store(&down)
		start := time.Now()
		c.run(step{tokens: 1}, "slow")
		assert.Less(t, time.Since(start), 2*takes)
		assert.PanicsWithValue(t, "a fallback that counts no tokens", func() { _, _ = c.ask(t.Context(), request{user: "ann", tokens: 2}) })
		d, err := local.Take(t.Context(), "test:other:{ann}", 1)
		require.NoError(t, err)
		assert.EqualValues(t, 8, d.Remaining)
	})
}

// Three requests meet an outage, others are answered at once, and the observers of limiters and policies learn it. The
// middleware's timeout counts if it is shorter than that of calls.
func TestPolicies_OneBreakerForAll(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		all    []quota
		client rratelimiter.Option
		site   options
		passes int            // of 20
		source []limit.Source // in the outage
	}{
		"together": {all: quotas(), site: options{failsOpen}, passes: 20, source: []limit.Source{limit.FromOpen}},
		"alone, by its own policy": {
			all: quotas()[:1], client: rratelimiter.WithFailure(limit.FailLocal(0.5)), passes: 5, source: []limit.Source{limit.FromLocal},
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			rdb, _ := redistest.Mini(t)
			c := newChat(t, rdb, row.all, chatOptions{client: row.client, site: row.site})
			c.run(step{tokens: 1}, "before")
			time.Sleep(time.Second)
			c.outage.Store(&hung)
			c.told.Decisions()
			passed := 0
			for i := range 20 {
				start := time.Now()
				if v, _ := c.ask(t.Context(), request{user: "ann", tokens: 1}); !v.Refused && !v.Closed {
					passed++
				}
				if i < 3 {
					assert.Equal(t, time.Second, time.Since(start), name)
				} else {
					assert.LessOrEqual(t, time.Since(start), 5*time.Millisecond, name)
				}
			}
			assert.Equal(t, row.passes, passed, name)
			assert.Len(t, c.errs.Take(), 3, name)
			synctest.Wait()
			askedNoMore := func(r *limitertest.Recorder) (of []string) {
				for _, e := range r.Events() {
					if e.Kind == limit.AskedNoMore {
						of = append(of, e.Limiter)
					}
				}
				return of
			}
			var all []string
			for _, q := range row.all {
				all = append(all, q.name)
			}
			assert.ElementsMatch(t, all, askedNoMore(&c.told), name)
			assert.Equal(t, []string{""}, askedNoMore(c.own), name)
			for _, d := range c.told.Decisions() {
				assert.Contains(t, row.source, d.Source, name)
			}
			c.outage.Store(nil)
			time.Sleep(time.Minute)
		})
	}
}

// A request whose client goes away, or whose time is over, keeps no permits.
func TestPolicies_CallerGoes(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	limitertest.Virtual(t, map[string]time.Duration{"cancelled": -10 * ms, "deadline": 10 * ms, "timeout": 0},
		func(t *testing.T, rdb redistest.Client, in time.Duration) {
			const most = 500 * ms
			c := newChat(t, rdb, quotas(), chatOptions{site: options{option((*middleware.Options).SetTimeout, most)}})
			c.run(step{tokens: 1}, "before")
			rdb.AddHook(limitertest.Slow(800 * ms))
			c.handle = func(context.Context) { t.Error("it got through") }
			ctx, cancel := middlewaretest.Ending(t.Context(), in)
			defer cancel()
			start := time.Now()
			v, _ := c.ask(ctx, request{user: "ann", tokens: 100})
			assert.True(t, v.Closed)
			assert.Equal(t, ctx.Err() == context.Canceled, v.Gone)
			assert.LessOrEqual(t, time.Since(start), most)
			c.run(step{after: 5 * time.Second, look: true, left: []int64{9, 999, 99, 4999}}, "afterwards")
		})
}
