package middleware_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// named are policies of these limiters, named "a", "b" and so on.
func named(limiters ...limit.Limiter) (all []policy) {
	for i, l := range limiters {
		all = append(all, policy{Terms: middleware.Terms{Name: string(rune('a' + i)), Limiter: l}})
	}
	return all
}

func refusing() *middlewaretest.Fake {
	return middlewaretest.Says(limit.Decision{Limit: 1, RetryAfter: time.Second}, nil)
}

func giving(f func() error) *middlewaretest.Returner {
	return &middlewaretest.Returner{Fake: middlewaretest.Grants(), Giving: f}
}

// Policies are asked at the same time, and so are their fallbacks. What one that is slow or fails leaves open is no excuse for
// the others: a policy that refuses refuses. A grant that stays taken does not show as free, and giving back does not hold up the
// answer for longer than the timeout.
func TestPolicies_AskedAtTheSameTime(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	errDown, another := errors.New("connection refused"), errors.New("another one")
	deaf := func(d time.Duration) limit.Limiter { return middlewaretest.Deaf(d) }
	slow := func() []policy { return named(deaf(time.Minute), refusing()) }
	keeping := func(f func() error) []policy { return named(giving(f), middlewaretest.Grants(), refusing()) }
	fallbacks := named(middlewaretest.Says(limit.Decision{}, errDown), middlewaretest.Says(limit.Decision{}, errDown))
	fallbacks[1].Fallback = deaf(time.Minute)
	unbound := option((*middleware.Options).SetTimeout, 0)
	type row struct {
		policies []policy
		opts     options
		refused  string // by whom
		took     time.Duration
		failed   []error // all of them close
		kept     string  // what giving back says
	}
	limitertest.Bubbles(t, map[string]row{
		"slow": {policies: named(deaf(300*ms), deaf(400*ms)), took: 400 * ms},
		"down": {
			policies: named(middlewaretest.Says(limit.Decision{}, errDown), middlewaretest.Says(limit.Decision{}, another)),
			failed:   []error{errDown, another},
		},
		"slow fallbacks": {
			policies: fallbacks, opts: options{option((*middleware.Options).SetFallback, deaf(time.Minute))},
			took: time.Second, failed: []error{errDown, context.DeadlineExceeded},
		},
		"slow, closed":       {policies: slow(), refused: "b", took: time.Second, failed: []error{context.DeadlineExceeded}},
		"slow, open":         {policies: slow(), opts: options{failsOpen}, refused: "b", took: time.Second},
		"slow, fallback":     {policies: slow(), opts: options{failsTo()}, refused: "b", took: time.Second},
		"gives nothing back": {policies: keeping(func() error { return errDown }), opts: options{unbound}, refused: "c", kept: errDown.Error()},
		"panics":             {policies: keeping(func() error { panic("boom") }), opts: options{unbound}, refused: "c", kept: "panic: boom"},
		"hangs": {
			policies: keeping(func() error { time.Sleep(time.Hour); return nil }), opts: options{unbound},
			refused: "c", took: time.Second, kept: context.DeadlineExceeded.Error(),
		},
	}, func(t *testing.T, row row) {
		s := newSite(t, row.policies, row.opts...)
		start := time.Now()
		v, questions := s.ask(t.Context(), request{user: "ann"})
		assert.Equal(t, row.took, time.Since(start))
		assert.Equal(t, row.refused, refusers(questions))
		assert.Equal(t, row.failed != nil, v.Closed)
		for _, err := range row.failed {
			require.ErrorIs(t, v.Failure, err)
			require.ErrorIs(t, v.News, err)
		}
		if row.kept == "" {
			require.NoError(t, v.Kept)
		} else {
			require.ErrorContains(t, v.Kept, row.kept)
			assert.Equal(t, []int64{9, 9}, []int64{questions[0].Decision.Remaining, questions[1].Decision.Remaining})
		}
		time.Sleep(time.Hour)
	})
}

// A policy that panics leaves nothing taken of the others.
func TestPolicies_OnePanics(t *testing.T) {
	t.Parallel()
	panics := &middlewaretest.Fake{Answer: func(context.Context, int64) (limit.Decision, error) { panic("oops") }}
	first, last := giving(nil), giving(nil)
	s := newSite(t, named(first, panics, last))
	assert.PanicsWithValue(t, "oops", func() { s.ask(t.Context(), request{}) })
	assert.Len(t, first.GivenBack(), 1)
	assert.Len(t, last.GivenBack(), 1)
}

// Grants that come too late, or for a client that has gone, are given back.
func TestPolicies_GivingBackOutlivesTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, row := range map[string]struct {
			opts   options
			leaves time.Duration // 0: never
		}{"closed": {}, "its client leaves": {leaves: 10 * time.Millisecond}, "open": {options{failsOpen}, 10 * time.Millisecond}} {
			quick, late := giving(nil), &middlewaretest.Returner{Fake: middlewaretest.Deaf(time.Minute)}
			s := newSite(t, named(quick, late), row.opts...)
			s.handle = func(context.Context) { t.Error("it got through") }
			ctx, cancel := middlewaretest.Ending(t.Context(), -row.leaves)
			start := time.Now()
			v, questions := s.ask(ctx, request{})
			cancel()
			assert.Equal(t, row.leaves > 0, v.Gone, name)
			assert.Equal(t, cmp.Or(row.leaves, time.Second), time.Since(start), name)
			require.NoError(t, s.GiveBack(t.Context(), questions), "nothing more")
			assert.Len(t, quick.GivenBack(), 1, name)
			assert.Empty(t, late.GivenBack(), name)
			time.Sleep(time.Hour)
			assert.Len(t, late.GivenBack(), 1, name)
		}
	})
}

// Policies have a cost and key each, or share the middleware's, asked once. If a function fails, none is charged.
func TestPolicies_CostsAndKeys(t *testing.T) {
	t.Parallel()
	fails := errors.New("no such model")
	for name, row := range map[string]struct {
		costs [3]int64 // of the middleware, and of two policies; 0: free
		cost  error    // of the last
		key   error    // of the last
		want  [3]int64
	}{
		"each its own": {costs: [3]int64{1, 2, 3}, want: [3]int64{1, 2, 3}},
		"free of one":  {costs: [3]int64{1, 0, 3}, want: [3]int64{1, 0, 3}},
		"free":         {costs: [3]int64{0, 2, -1}, want: [3]int64{0, 2, 0}},
		"cost fails":   {costs: [3]int64{1, 2, 3}, cost: fails},
		"key fails":    {costs: [3]int64{1, 2, 3}, key: fails},
	} {
		limiters := []*middlewaretest.Fake{middlewaretest.Grants(), middlewaretest.Grants(), middlewaretest.Grants(), middlewaretest.Grants()}
		all := named(limiters[0], limiters[1], limiters[2], limiters[3])
		asked := map[string]int{}
		cost := func(i int, err error) func(request) (int64, error) {
			return func(request) (int64, error) {
				asked["cost"]++
				return row.costs[i], err
			}
		}
		all[1].Cost, all[2].Cost = cost(1, nil), cost(2, row.cost)
		all[2].Keys, all[2].Prefix = keys{func(request) (string, error) { return "192.0.2.1", row.key }}, "client:"
		s := newSite(t, all, func(p *middleware.Policies[request]) {
			p.Cost, p.Keys = cost(0, nil), keys{func(r request) (string, error) {
				asked["key"]++
				return r.user, nil
			}}
		})
		questions, err := s.Questions(request{user: "ann"})
		if row.cost != nil || row.key != nil {
			require.ErrorIs(t, err, fails)
			continue
		}
		require.NoError(t, err)
		s.AskAll(t.Context(), questions)
		for i, want := range append(row.want[:], row.want[0]) {
			var got []middlewaretest.Call
			if want > 0 {
				key := []string{"test:a:ann", "test:b:ann", "client:192.0.2.1", "test:d:ann"}[i]
				got = []middlewaretest.Call{{Key: key, N: want}}
			}
			assert.Equal(t, got, limiters[i].Asked(), name)
		}
		assert.Equal(t, 3, asked["cost"], name)
		assert.LessOrEqual(t, asked["key"], 1, name)
	}
}

// A user called "ip" must not reach keys of the policy of that prefix. A hash tag ends a prefix. The name of a policy is a part of
// its keys like others, without which a prefix of its own does.
func TestPolicies_KeysStayApart(t *testing.T) {
	t.Parallel()
	user, address, other := middlewaretest.Grants(), middlewaretest.Grants(), middlewaretest.Grants()
	of := func(prefixes ...string) []policy {
		all := named(user, address, other)[:len(prefixes)]
		for i, prefix := range prefixes {
			all[i].Prefix = prefix
		}
		all[0].Name = "a:{b}"
		all[1].Keys = keys{func(request) (string, error) { return "192.0.2.1", nil }, func(r request) (string, error) { return r.user, nil }}
		return all
	}
	api := func(p *middleware.Policies[request]) { p.Prefix = "api:" }
	for _, row := range []struct {
		policies []policy
		opts     options
		keys     []string
		says     []string // of the mistake
	}{
		{of("", ""), nil, []string{"test:a%3A%7Bb%7D:ip", "test:b:192.0.2.1:ip"}, nil},
		{of("", "client:"), options{api}, []string{"api:ip", "client:192.0.2.1:ip"}, nil},
		{of("", "", "day:"), options{tagged}, []string{"test:a%3A%7Bb%7D:{ip}", "test:b:{192.0.2.1:ip}", "day:{ip}"}, nil},
		{of("", "api:ip:"), options{api, tagged}, []string{"api:{ip}", "api:ip:{192.0.2.1:ip}"}, nil},
		{of("", "api:ip:"), options{api}, nil, []string{`"a:{b}"`, `"api:"`, `"b"`, `"api:ip:"`, "WithPrefix", "Policy.Prefix"}},
	} {
		if row.says != nil {
			p := middleware.Policies[request]{}
			api(&p)
			err := p.SetPolicies(row.policies)
			for _, text := range row.says {
				assert.ErrorContains(t, err, text)
			}
			continue
		}
		newSite(t, row.policies, row.opts...).ask(t.Context(), request{user: "ip"})
		for i, want := range row.keys {
			assert.Equal(t, want, []*middlewaretest.Fake{user, address, other}[i].Key())
		}
	}
}

// A bucket has a second key, with "_time" behind the first. A key that ends so is escaped: no user leads to the keys of another.
func TestPolicies_KeysOfBucketsStayApart(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		bucket := tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 1, Refill: 1, Interval: time.Hour})
		policies := named(bucket, struct{ *tokenbucket.Limiter }{bucket}, middlewaretest.Says(limit.Decision{}, limit.ErrUnavailable))
		policies[2].Fallback = bucket
		users := []string{"ann", "ann_time", "ann_time%"}
		for _, opts := range []options{nil, {tagged}} {
			s := newSite(t, policies, opts...)
			for i := range 3 {
				for _, user := range users {
					v, _ := s.ask(t.Context(), request{user: user})
					assert.Equal(t, i > 0, v.Refused, user)
				}
			}
		}
		assert.Len(t, rdb.Keys(t.Context(), "test:*").Val(), 2*len(policies)*2*len(users))
	})
}

// uncomparable is a limiter that can't be the key of a map.
type uncomparable struct {
	*middlewaretest.Fake

	_ []int
}

// A request chooses its limiter. If it chooses none, the policy's decides: no request goes without a limit. Each has a breaker of
// its own and the options of all, and however many there are, each decides.
func TestPlan_RequestsChooseTheirLimiter(t *testing.T) {
	t.Parallel()
	standard, paid, team := middlewaretest.Budget(1, time.Hour), middlewaretest.Budget(3, time.Hour), middlewaretest.Budget(2, time.Hour)
	down, lacks, windowed := middlewaretest.Says(limit.Decision{}, limit.ErrUnavailable), middlewaretest.Grants(), middlewaretest.Windowed{Span: time.Hour}
	var none *middlewaretest.Fake
	windowed.Limiter = down
	limiters := map[string]limit.Limiter{"paid": paid, "team": uncomparable{Fake: team}, "none": none, "down": windowed, "lacks": lacks}
	policies := named(middlewaretest.Windowed{Limiter: standard, Span: time.Hour})
	policies[0].Keys = keys{func(request) (string, error) { return "all", nil }}
	policies[0].Plan = func(r request) limit.Limiter { return limiters[r.user] }
	s := newSite(t, policies, failsOpen)
	for i, c := range []struct {
		user   string
		of     *middlewaretest.Fake
		passes bool
	}{
		{"paid", paid, true}, {"none", standard, true}, {"", standard, false}, {"unknown", standard, false}, {"team", team, true},
		{"paid", paid, true}, {"team", team, true}, {"team", team, false}, {"paid", paid, true}, {"paid", paid, false}, {"none", standard, false},
	} {
		before := len(c.of.Asked())
		v, _ := s.ask(t.Context(), request{user: c.user})
		assert.Equal(t, !c.passes, v.Refused, "request %d", i)
		require.Len(t, c.of.Asked(), before+1, "request %d", i)
		assert.Equal(t, middlewaretest.Call{Key: "test:all", N: 1}, c.of.Asked()[before])
	}
	assert.Len(t, s.told.Decisions(), 11)
	before := len(standard.Asked())
	for range 20 {
		v, _ := s.ask(t.Context(), request{user: "down"})
		assert.False(t, v.Refused || v.Closed)
		v, _ = s.ask(t.Context(), request{})
		assert.True(t, v.Refused)
	}
	assert.Less(t, len(down.Asked()), 10)
	assert.Len(t, standard.Asked(), before+20)
	assert.Len(t, s.errs.Take(), 3, "later ones are not told")

	// A limiter of a plan that lacks what an option needs is a mistake.
	_, err := newSite(t, policies, option((*middleware.Options).SetFailure, limit.FailLocal(1))).Questions(request{user: "lacks"})
	require.ErrorIs(t, err, limit.ErrInvalidConfig)
}

// Settle settles the policies that say so of all middleware around the handler. What failed is settled by the next such call.
func TestSettle_SettlesThePoliciesThatSaySo(t *testing.T) {
	t.Parallel()
	var all []*middlewaretest.Reserver
	site := func(terms ...middleware.Terms) *site {
		var policies []policy
		for _, of := range terms {
			all = append(all, &middlewaretest.Reserver{Fake: middlewaretest.Grants()})
			of.Limiter = all[len(all)-1]
			policies = append(policies, policy{Terms: of})
		}
		policies[len(policies)-1].Cost = func(request) (int64, error) { return 5, nil }
		return newSite(t, policies)
	}
	outer := site(middleware.Terms{Name: "a", Settle: true}, middleware.Terms{Name: "keeps"})
	inner := site(middleware.Terms{Name: "b", Settle: true}, middleware.Terms{Name: "c", Settle: true}, middleware.Terms{Name: "keeps too"})
	fails := all[2]
	fails.Fails = limit.ErrUnavailable
	inner.handle = func(ctx context.Context) {
		require.EqualError(t, middleware.Settle(ctx, 3), `limit "b": `+limit.ErrUnavailable.Error())
		require.ErrorIs(t, middleware.Settle(ctx, 4), limit.ErrSettled)
		fails.Fails = nil
		require.NoError(t, middleware.Settle(ctx, 3))
		require.ErrorIs(t, middleware.Settle(ctx, 3), limit.ErrSettled)
	}
	outer.handle = func(ctx context.Context) { inner.ask(ctx, request{}) }
	outer.ask(t.Context(), request{})
	for i, want := range [][]int64{{3}, nil, {3}, {3}, nil} {
		assert.Equal(t, want, all[i].Settled)
	}

	// What policies reserved goes back if another refuses, even if the request passes.
	for _, opts := range []options{nil, {shadowed}} {
		reserver := &middlewaretest.Reserver{Fake: middlewaretest.Grants()}
		policies := named(reserver, middlewaretest.Says(limit.Decision{}, nil))
		policies[0].Settle = true
		s := newSite(t, policies, opts...)
		s.handle = func(ctx context.Context) { require.NoError(t, middleware.Settle(ctx, 3)) }
		s.ask(t.Context(), request{})
		assert.Equal(t, []int64{0}, reserver.Settled)
	}
}

// The function of a KeyedFunc may be a look-up: it is asked once for each request, however often the limiters are. It gets what the
// key functions have returned, whatever the key is, also of a limiter that answers in another's place or that a plan has chosen.
func TestKeyedFunc(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("bob", 100)
	for name, row := range map[string]struct {
		opts    options
		user    string
		settled bool
		key     string // "": hashed
	}{
		"one call each":     {user: "ann", key: "test:a:ann"},
		"one call for both": {opts: options{tagged}, user: "google:bob", key: "test:a:{google%3Abob}"},
		"settled":           {user: "google:{bob} 100%", settled: true, key: "test:a:google%3A%7Bbob%7D%20100%25"},
		"hashed":            {user: long},
		"missing":           {key: "test:a:"},
	} {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			client, asked := limitertest.NewClient(t, rdb), map[string][]string{}
			counting := func(prefix string) limit.Limiter {
				return client.KeyedFunc(prefix, func(key string) rratelimiter.Config {
					asked[prefix] = append(asked[prefix], key)
					return rratelimiter.PerSecond(2)
				})
			}
			chosen, stands := counting("chosen:"), counting("stands in:")
			quota := fixedwindow.NewFunc(client, func(key string) fixedwindow.Config {
				assert.Equal(t, row.user, key)
				return fixedwindow.Config{Limit: 10, Window: time.Minute}
			})
			fails := middlewaretest.Says(limit.Decision{}, limit.ErrUnavailable)
			all := named(counting("first:"), counting("second:"), middlewaretest.Grants(), fails, quota)
			all[0].Prefix, all[1].Settle, all[3].Fallback = "test:a:", row.settled, stands
			all[2].Plan = func(request) limit.Limiter { return chosen }
			s := newSite(t, all, row.opts...)
			for i := range 4 { // the third waits
				questions := limitertest.Must(s.Questions(request{user: row.user}))(t)
				turn := s.Turn(questions)
				for v := turn.Ask(t.Context()); v.Refused; v = turn.Ask(t.Context()) {
					require.NoError(t, turn.Sleep(t.Context(), middleware.RetryAfter(questions)))
				}
				turn.Leave()
				want := slices.Repeat([]string{row.user}, i+1)
				if i < 2 {
					assert.Equal(t, want, asked["stands in:"], "%s: once for each time", name)
				}
				assert.Equal(t, [][]string{want, want, want}, [][]string{asked["first:"], asked["second:"], asked["chosen:"]}, name)
			}
			if row.key != "" {
				assert.EqualValues(t, 1, rdb.Exists(t.Context(), "first:"+row.key).Val(), name)
			}
		})
	}
}
