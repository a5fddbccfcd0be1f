package middleware_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

const day = 24 * time.Hour

// story is what happens to requests behind quotas.
type story struct {
	quotas []quota
	change func(all []quota)
	opts   chatOptions
	steps  []step
}

// ofKinds are policies that can't go together with the quotas, and one that has another key.
func ofKinds(t *testing.T, rdb redistest.Client) []policy {
	t.Helper()
	client := limitertest.NewClient(t, rdb)
	all := named(
		client.Keyed("", rratelimiter.PerMinute(900)),
		slidinglog.New(client, slidinglog.Config{Limit: 800, Window: time.Minute}),
		fixedwindow.New(client, fixedwindow.Config{Limit: 700, Window: time.Minute}),
		tokenbucket.New(client, tokenbucket.Config{Capacity: 760, Refill: 760, Interval: time.Minute}),
	)
	for i, name := range []string{"other", "log", "window", "bucket"} {
		all[i].Name, all[i].Cost = name, tokensOf
	}
	constant := func(request) (string, error) { return "192.0.2.1", nil }
	return append(all, policy{Terms: middleware.Terms{Name: "address", Limiter: middlewaretest.Grants()}, Keys: keys{constant}})
}

// stories tell of policies that one script call decides: a request is charged to all of them or to none.
var stories = map[string]story{
	"settled": {steps: []step{ // requests keep what they were charged
		{tokens: 800, settle: []int64{50}, left: []int64{9, 950, 99, 4950}},
		{tokens: 100, settle: []int64{300}, left: []int64{8, 650, 98, 4650}},
		{tokens: 100, settle: []int64{0}, left: []int64{7, 650, 97, 4650}},
		{tokens: 100, settle: []int64{100}, left: []int64{6, 550, 96, 4550}},
	}},
	"each has its hold": {change: func(all []quota) { all[1].terms.Hold, all[3].terms.Hold = 3*time.Second, 10*time.Minute }, steps: []step{
		{tokens: 200},
		{tokens: 600, calls: 1, left: []int64{8, 200, 98, 4200}},
		{after: 4 * time.Second, look: true, left: []int64{8, 1000, 98, 4200}},
		{after: 10 * time.Minute, look: true, left: []int64{unknown, unknown, 98, 5000}},
	}},
	// It takes the whole limit. A call more finds out what that is.
	"estimate above a limit": {steps: []step{
		{},
		{tokens: 3000, calls: 2, during: []int64{8, 0, 98, 2000}, settle: []int64{4000}, left: []int64{8, 0, 98, 1000}},
		{tokens: 1, refused: "tokens-minute", wait: time.Minute}, // a debt
		{after: 25 * time.Hour, tokens: 6000, left: []int64{unknown, 0, unknown, 0}},
		{tokens: 6000, refused: "tokens-minute, tokens-day", wait: day},
		{after: 25 * time.Hour, tokens: 1 << 40, left: []int64{unknown, 0, unknown, 0}},
		{tokens: 1 << 40, refused: "tokens-minute, tokens-day", wait: day},
	}},
	// What is not to be settled never passes above its limit.
	"too costly for one": {
		opts: chatOptions{site: options{func(p *middleware.Policies[request]) {
			p.Cost = func(r request) (int64, error) { return r.tokens / 10, nil }
		}}},
		steps: []step{
			{tokens: 10},
			{tokens: 110, calls: 1, refused: "requests-minute", left: []int64{9, 990, 99, 4990}},
			{look: true, do: func(c *chat) {
				for _, recorder := range []*limitertest.Recorder{c.own, &c.told} {
					synctest.Wait()
					decisions := recorder.Decisions()
					require.Len(c.t, decisions, 5)
					last := decisions[4]
					assert.Equal(c.t, []any{limit.TooCostly, nil, int64(11)}, []any{last.Outcome, last.Err, last.Permits})
				}
			}},
		},
	},
	// Each request passes, and those that would have been refused are charged to none.
	"all in shadow": {opts: chatOptions{site: options{shadowed}}, steps: []step{
		{tokens: 300, settle: []int64{500}},
		{tokens: 300, settle: []int64{500}},
		{tokens: 300, calls: 1, refused: "tokens-minute", wait: time.Minute, settle: []int64{500}, left: []int64{8, 0, 98, 4000}},
	}},
	// Limiters that can't go together are asked at the same time; those of one Client that the request costs something by one call.
	"of several kinds and Clients": {opts: chatOptions{more: ofKinds}, steps: []step{
		{tokens: 500},
		{calls: 1},
		{tokens: 1, calls: 5, left: []int64{7, 499, 97, 4499, 399, unknown, unknown, unknown, unknown}},
		{tokens: 250, refused: "window", wait: time.Minute, left: []int64{7, 499, 97, 4499, 399, unknown, unknown, unknown, unknown}},
		{tokens: 250, refused: "window", wait: time.Minute, left: []int64{7, 499, 97, 4499, 399, unknown, unknown, unknown, unknown}},
		{tokens: 199}, // nothing stays taken of the log and the bucket
	}},
	// Answers from memory are among them.
	"lease and refusal cache": {change: func(all []quota) {
		all[0].opts = []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{Life: 10 * time.Second})}
		all[2].rate, all[2].opts = rratelimiter.PerDay(3), []rratelimiter.LimiterOption{rratelimiter.WithRefusalCache()}
	}, steps: []step{
		{tokens: 10}, {tokens: 10},
		{tokens: 10, do: func(c *chat) { c.own.Decisions() }},
		{tokens: 10, refused: "requests-day", wait: day, do: func(c *chat) {
			synctest.Wait()
			assert.Contains(c.t, c.own.Sources(), limit.FromMemory)
		}},
		{tokens: 10, refused: "requests-day", wait: day, left: []int64{unknown, 970, unknown, 4970}},
	}},
	// Estimates above several limits are lowered to each of them, in the time that the middleware allows.
	"estimate above many limits": {change: func(all []quota) {
		for i, name := range []string{"a", "b", "c", "d"} {
			all[i] = quota{name: name, rate: rratelimiter.PerMinute(10), tokens: true}
		}
	}, steps: []step{
		{tokens: 1},
		{after: time.Minute, tokens: 20, calls: 5, left: []int64{0, 0, 0, 0}},
		{tokens: 20, closed: limit.ErrUnavailable, took: time.Second, do: func(c *chat) { c.rdb.AddHook(limitertest.Slow(300 * time.Millisecond)) }},
		{look: true, do: func(c *chat) { assert.Len(c.t, c.errs.Take(), 1) }},
	}},
	// A policy's local limiter follows the limit that requests have met, though others of its kind have none.
	"local limit": {change: func(all []quota) {
		for i := range all {
			all[i].opts = []rratelimiter.LimiterOption{rratelimiter.WithFailure(limit.FailOpen())}
		}
		all[1].opts = []rratelimiter.LimiterOption{rratelimiter.WithFailure(limit.FailLocal(0.5))}
	}, steps: []step{
		{tokens: 1},
		{tokens: 1, do: func(c *chat) {
			assert.NoError(c.t, c.client.RateLimiter("test:tokens-minute:{ann}").SetRate(c.t.Context(), rratelimiter.PerMinute(100)))
		}},
		{after: time.Second, tokens: 50, do: fails(&down)},
		{tokens: 1, refused: "tokens-minute", wait: time.Minute},
		{look: true, do: func(c *chat) { c.errs.Take() }},
	}},
	// A closed Client decides nothing, whatever its limiters' policies are, also if it was closed during an outage.
	"closed":                  {opts: chatOptions{site: options{failsOpen}}, steps: closedAfter(nil)},
	"closed during an outage": {opts: chatOptions{site: options{failsOpen}}, steps: closedAfter(&down)},
	// What a mistake of one limiter comes to is as if each had been asked alone.
	"one is damaged": {steps: []step{
		{tokens: 100},
		{tokens: 100, closed: limit.ErrCorrupt, left: []int64{9, 900, 99, unknown}, do: func(c *chat) {
			damaged := c.client.RateLimiter("test:tokens-day:{ann}")
			limitertest.Damage(c.t, c.rdb, damaged, "HSET config rate many")
		}},
		{look: true, do: func(c *chat) {
			errs := c.errs.Take()
			require.Len(c.t, errs, 1)
			assert.ErrorContains(c.t, errs[0], `test: policy "tokens-day": rratelimiter: Take "test:tokens-day:{ann}"`)
		}},
	}},
}

// closedAfter are requests while Redis fails so, and one after the Client was closed.
func closedAfter(by *failing) []step {
	last := step{tokens: 1, closed: limit.ErrClosed, do: func(c *chat) { assert.NoError(c.t, c.client.Close(c.t.Context())) }}
	return []step{{tokens: 1, do: fails(by)}, {tokens: 1}, {tokens: 1}, {tokens: 1}, {tokens: 1}, last, {look: true, do: func(c *chat) { c.errs.Take() }}}
}

func TestPolicies_Together(t *testing.T) {
	t.Parallel()
	// Those before 3.13.3 keep fixed windows, which can't go together, nor be settled.
	all := maps.Clone(stories)
	for _, version := range []string{"3.13.3", "3.17.0", "4.7.0"} {
		all["beside Redisson "+version] = story{opts: chatOptions{client: rratelimiter.WithRedissonVersion(version)}, steps: []step{
			{tokens: 600, settle: []int64{400}, left: []int64{9, 600, 99, 4600}},
			{tokens: 700, calls: 1, refused: "tokens-minute", wait: time.Minute, left: []int64{9, 600, 99, 4600}},
		}}
	}
	all["beside Redisson 3.12.0"] = story{opts: chatOptions{client: rratelimiter.WithRedissonVersion("3.12.0")}, steps: []step{
		{tokens: 600, settle: []int64{400}, cannot: limit.ErrUnsupported, left: []int64{9, 400, 99, 4400}},
		{tokens: 700, refused: "tokens-minute", wait: time.Minute},
	}}
	limitertest.Virtual(t, all, func(t *testing.T, rdb redistest.Client, row story) {
		row.quotas = quotas()
		if row.change != nil {
			row.change(row.quotas)
		}
		row.play(t, rdb)
	})
}

// play makes the requests. No one hears of an error, unless a step takes it.
func (row story) play(t *testing.T, rdb redistest.Client) {
	t.Helper()
	c := newChat(t, rdb, row.quotas, row.opts)
	for i, s := range row.steps {
		c.run(s, fmt.Sprint("step ", i))
	}
	assert.Empty(t, c.errs.All())
}

// One script call decides for all policies. A request that one of them refuses counts as refused by that policy alone.
func TestPolicies_RefusedByOneChargedToNone(t *testing.T) {
	t.Parallel()
	for i, refuser := range quotas() {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			all := quotas()
			all[i].rate.Rate = map[bool]int64{false: 2, true: 250}[refuser.tokens]
			c := newChat(t, rdb, all, chatOptions{})
			c.run(step{tokens: 100}, refuser.name) // the server learns the script
			left := c.left()
			left = []int64{left[0] - 1, left[1] - 100, left[2] - 1, left[3] - 100}
			c.run(step{tokens: 100, calls: 1, left: left}, refuser.name)
			c.run(step{tokens: 100, calls: 1, refused: refuser.name, wait: refuser.rate.Interval, left: left}, refuser.name)
			want := slices.Repeat([]limit.Outcome{limit.Granted}, 12)
			want[8+i] = limit.Refused
			assert.Equal(t, want, outcomes(c.own))
			assert.Equal(t, want, outcomes(&c.told))
		})
	}
}

// A policy in shadow, or one whose limiter is, counts as refused what all others let pass.
func TestPolicies_ShadowCountsWhatTheOthersLetPass(t *testing.T) {
	t.Parallel()
	rate := quota{name: "default", rate: rratelimiter.PerMinute(4)}
	watches := quota{name: "watches", rate: rratelimiter.PerMinute(2)}
	policy, limiter, foreign := watches, watches, &middlewaretest.Returner{Fake: middlewaretest.Budget(2, time.Minute)}
	policy.terms.Shadow, limiter.opts = true, []rratelimiter.LimiterOption{rratelimiter.WithShadow()}
	for name, row := range map[string]story{
		"policy": {quotas: []quota{rate, policy}}, "limiter": {quotas: []quota{rate, limiter}},
		"foreign": {quotas: []quota{rate}, opts: chatOptions{more: func(*testing.T, redistest.Client) []middleware.Policy[request] {
			return []middleware.Policy[request]{{Terms: middleware.Terms{Name: "watches", Limiter: foreign, Shadow: true}}}
		}}},
	} {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			c := newChat(t, rdb, row.quotas, row.opts)
			for _, s := range []step{{}, {}, {shadows: "watches"}, {shadows: "watches"}, {refused: "default"}, {refused: "default"}} {
				if s.refused != "" {
					s.wait = time.Minute
				}
				c.run(s, name)
			}
			synctest.Wait()
			for key, recorder := range map[string]*limitertest.Recorder{"test:watches:{ann}": &c.told, "": c.own} {
				var got []any
				for _, d := range recorder.Decisions() {
					if d.Shadow {
						assert.Equal(t, []any{key, int64(2)}, []any{d.Key, d.Limit}, name)
						got = append(got, d.Outcome, d.Remaining)
					}
				}
				if name != "foreign" || key != "" {
					assert.Equal(t, []any{limit.Granted, int64(1), limit.Granted, int64(0), limit.Refused, int64(0), limit.Refused, int64(0)}, got, name)
				}
			}
		})
	}
}

// An estimate above the limit takes all of it, and is settled like others. A limiter that is asked again for it, since it was too
// high or can't be reserved, has the timeout once, the fallback again; what comes too late is given back.
func TestPolicies_EstimateAboveTheLimit(t *testing.T) {
	t.Parallel()
	const ms, most = time.Millisecond, 1 << 40
	exceeds, cannot := limit.ErrPermitsExceedRate, limit.ErrUnsupported
	type answer struct {
		limit int64
		err   error // nil: it refuses
	}
	type (
		answers []answer
		numbers []int64
	)
	type row struct {
		cost     int64   // 0: 25
		says     answers // one after another, before it grants
		takes    time.Duration
		fallback limit.Limiter
		asked    numbers
		state    middleware.State // 0: granted
		took     time.Duration
		settled  numbers // with 30 by the handler
	}
	high, unreserved := answers{{10, exceeds}}, answers{{10, cannot}}
	twice, again, used, back := numbers{25, 10}, numbers{25, 25}, numbers{30}, numbers{0}
	late, stands := 900*ms, middlewaretest.Deaf(900*ms)
	limitertest.Bubbles(t, map[string]row{
		"exceeds":                {says: high, asked: twice, settled: used},
		"refused":                {says: answers{{10, nil}}, asked: twice, settled: used},
		"it shrinks":             {says: answers{{10, exceeds}, {4, exceeds}}, asked: numbers{25, 10, 4}, settled: used},
		"it keeps on":            {says: answers{{10, exceeds}, {9, exceeds}, {8, exceeds}}, asked: numbers{25, 10, 9}, state: middleware.TooCostly},
		"unknown":                {says: answers{{0, exceeds}, {0, exceeds}}, asked: numbers{25}, state: middleware.TooCostly},
		"too many for all":       {cost: most, says: answers{{0, limit.ErrInvalidPermits}, {10, exceeds}}, asked: numbers{most, 1<<31 - 1, 10}, settled: used},
		"in time":                {says: high, takes: 400 * ms, asked: twice, took: 800 * ms, settled: used},
		"too late":               {says: high, takes: late, asked: twice, took: time.Second, settled: back, state: middleware.Closed},
		"too late, fallback":     {says: high, takes: late, fallback: stands, asked: twice, took: 1900 * ms, settled: back},
		"not reserved":           {says: unreserved, takes: 400 * ms, asked: again, took: 800 * ms},
		"not reserved, too high": {says: answers{{10, cannot}, {10, exceeds}}, asked: again, state: middleware.TooCostly},
		"not reserved, too late": {says: unreserved, takes: late, asked: again, took: time.Second, state: middleware.Closed},
		"not reserved, fallback": {says: unreserved, takes: late, fallback: stands, asked: again, took: 1900 * ms},
	}, func(t *testing.T, row row) {
		says := row.says
		limiter := &middlewaretest.Reserver{Fake: &middlewaretest.Fake{Answer: func(_ context.Context, n int64) (limit.Decision, error) {
			time.Sleep(row.takes)
			if len(says) == 0 {
				return limit.Decision{Granted: true, Limit: n}, nil
			}
			said := says[0]
			says = says[1:]
			return limit.Decision{Limit: said.limit, RetryAfter: time.Hour}, said.err
		}}}
		policies := named(limiter)
		policies[0].Settle, policies[0].Cost, policies[0].Fallback = true, tokensOf, row.fallback
		s := newSite(t, policies)
		s.handle = func(ctx context.Context) {
			err := middleware.Settle(ctx, 30)
			assert.Equal(t, row.fallback == nil && len(row.settled) == 0, err != nil, "%v", err)
		}
		start := time.Now()
		_, questions := s.ask(t.Context(), request{tokens: cmp.Or(row.cost, 25)})
		assert.Equal(t, cmp.Or(row.state, middleware.Granted), questions[0].State)
		assert.Equal(t, row.took, time.Since(start))
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, row.asked, numbers(limiter.Costs()))
		assert.Equal(t, row.settled, numbers(limiter.Settled))
		assert.Equal(t, questions[0].Permits, s.told.Decisions()[0].Permits, "what was reserved is reported")
		if row.state == 0 && row.fallback == nil {
			assert.Equal(t, row.asked[len(row.asked)-1], questions[0].Permits)
		}
	})
}

// Policies that are asked together answer as those that are not, whatever requests come and what they are settled with.
func TestPolicies_TogetherAsAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) [3]int64 {
			draw := func(least, most int64, name string) int64 { return rapid.Int64Range(least, most).Draw(r, name) }
			return [3]int64{draw(1, 1200, "estimate"), draw(-1, 1200, "used"), draw(0, 40, "pause")}
		}), 1, 12).Draw(r, "steps")
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			all := quotas()
			all[0].rate.Type = rratelimiter.PerClient
			all[3].rate.Rate = 3000
			alone := chatOptions{site: options{func(p *middleware.Policies[request]) { p.Tagged = false }}}
			chats := []*chat{newChat(t, rdb, all, chatOptions{}), newChat(t, rdb, all, alone)}
			for _, step := range steps {
				var got [2]string
				for i, c := range chats {
					c.handle = func(ctx context.Context) {
						if step[1] >= 0 {
							assert.NoError(t, middleware.Settle(ctx, step[1]))
						}
					}
					v, questions := c.ask(t.Context(), request{user: "ann", tokens: step[0]})
					got[i] = fmt.Sprint(v, middleware.RetryAfter(questions))
					for _, q := range questions {
						got[i] += fmt.Sprint(q.State, q.Decision.Limit, q.Decision.Remaining, q.Window)
						if !v.Refused || q.Blocks() { // what clients learn
							got[i] += q.Wait().String()
						}
					}
				}
				assert.Equal(t, got[1], got[0])
				time.Sleep(time.Duration(step[2]) * time.Second)
			}
		})
	})
}

// On a cluster each user's limits are on one server, and one script call decides.
func TestPolicies_OnACluster(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "a cluster")
	c := newChat(t, redistest.StartCluster(t, 3, 0).Client(t, nil), quotas(), chatOptions{})
	for _, user := range []string{"bob", "zoë", "eve"} {
		v, _ := c.ask(t.Context(), request{user: user, tokens: 600})
		assert.False(t, v.Refused || v.Closed, user)
	}
	c.run(step{tokens: 600, settle: []int64{400}, left: []int64{9, 600, 99, 4600}}, "ann")
	c.run(step{tokens: 700, calls: 1, refused: "tokens-minute", wait: time.Minute, round: time.Minute, left: []int64{9, 600, 99, 4600}}, "ann")
}

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

var failsOpen = option((*middleware.Options).SetFailure, limit.FailOpen())

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

// Three requests meet an outage, others are answered at once, and the observers of limiters and policies learn it. The
// middleware's timeout counts if it is shorter than that of calls.
func TestPolicies_OneBreakerForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := onMini(t, quotas(), failsOpen)
		c.run(step{tokens: 1}, "before")
		time.Sleep(time.Second)
		c.outage.Store(&hung)
		c.told.Decisions()
		for i := range 20 {
			start := time.Now()
			v, _ := c.ask(t.Context(), request{user: "ann", tokens: 1})
			assert.False(t, v.Refused || v.Closed)
			if i < 3 {
				assert.Equal(t, time.Second, time.Since(start))
			} else {
				assert.LessOrEqual(t, time.Since(start), 5*time.Millisecond)
			}
		}
		assert.Len(t, c.errs.Take(), 3)
		synctest.Wait()
		askedNoMore := func(r *limitertest.Recorder) (of []string) {
			for _, e := range r.Events() {
				if e.Kind == limit.AskedNoMore {
					of = append(of, e.Limiter)
				}
			}
			return of
		}
		assert.ElementsMatch(t, []string{"requests-minute", "tokens-minute", "requests-day", "tokens-day"}, askedNoMore(&c.told))
		assert.Equal(t, []string{""}, askedNoMore(c.own))
		assert.Equal(t, map[limit.Source]int{limit.FromOpen: 80}, c.told.Sources())
		c.outage.Store(nil)
		time.Sleep(time.Minute)
	})
}
