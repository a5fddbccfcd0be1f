package faults_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A fault is what the attempts of a call meet, in turn: see actions.
var (
	// With these a request reaches Redis at most once for each attempt, and before the next.
	lossy = []string{"", "drop", "drop+drop+drop", "swallow", "swallow+drop", "cut", "cut+drop", "drop+cut", "hold", "hold+hold"}
	// With these it does so after it was repeated.
	tardy = []string{"late", "late+late", "late+drop", "drop+late"}
	// With these it does so twice for each attempt, whichever answer is heard.
	twice = []string{"double", "double, last"}
)

// kinds are clients that wait for their answers as long as a read may take, and that end it with the caller's deadline.
var kinds = map[string]redistest.Options{"by default": {}, "ContextTimeoutEnabled": {ContextTimeoutEnabled: true}}

// actions returns what the words of a fault stand for; held releases the commands held back.
func actions(fault string, held <-chan struct{}) []redistest.Action {
	var all []redistest.Action
	for _, word := range strings.FieldsFunc(fault, func(r rune) bool { return r == '+' }) {
		action, known := map[string]redistest.Action{
			"pass": redistest.Pass, "drop": redistest.DropAnswer, "swallow": redistest.Swallow, "cut": redistest.Cut,
			"double": redistest.Duplicate, "double, last": redistest.DuplicateLast, "hold": redistest.Pass.When(held), "late": redistest.Late.When(held),
		}[word]
		if !known {
			panic("no such fault: " + word)
		}
		all = append(all, action)
	}
	return all
}

// eachLayout runs test with a release of Redisson for each layout.
func eachLayout(t *testing.T, name string, test func(t *testing.T, rdb redistest.Client, version string)) {
	t.Helper()
	for layout, version := range limitertest.MembersOf {
		t.Run(name+", "+layout, func(t *testing.T) {
			t.Parallel()
			redistest.VirtualServer(t, func(t *testing.T, rdb redistest.Client) { test(t, rdb, version) })
		})
	}
}

// three are permits of the limiters of a bundle.
type three [3]int64

func (a three) add(b three) three   { return three{a[0] + b[0], a[1] + b[1], a[2] + b[2]} }
func (a three) minus(b three) three { return three{a[0] - b[0], a[1] - b[1], a[2] - b[2]} }

// A bundle is a wire to one limiter, or to three that share a hash tag.
type bundle struct {
	*limitertest.Wire // to the first

	each        []*limitertest.Wire         // what CheckHeld needs of each
	own, others []*rratelimiter.RateLimiter // through the proxy, and another Client's, past it

	runs  bool              // what is asked reaches Redis
	alone bool              // and its first answer is heard
	check func(what string) // what else must hold of it, if anything
}

// wires returns the verb's limiters. Of several the second is of type PerClient, and the third is set up by its first use.
func (v verb) wires(t testing.TB, rdb redistest.Client, rate int64, version string) *bundle {
	t.Helper()
	connections := 3
	if v.several {
		connections = 20
	}
	cfg := rratelimiter.Config{Type: v.kind, Rate: rate, Interval: time.Hour}
	wire := limitertest.NewWireOf(t, rdb, cfg, v.byDefault, connections, rratelimiter.WithRedissonVersion(version))
	w := &bundle{Wire: wire, runs: true}
	add := func(each *limitertest.Wire, other *rratelimiter.RateLimiter) {
		w.each, w.own, w.others = append(w.each, each), append(w.own, each.RateLimiter), append(w.others, other)
	}
	add(wire, wire.Other)
	if !v.several {
		return w
	}
	byDefault := rratelimiter.WithDefault(limitertest.Hourly(rate))
	for _, name := range []string{"{" + w.Name() + "}:own", "{" + w.Name() + "}:default"} {
		keys, l, other := redisson.KeysOf(name, limitertest.WireID), w.Client.RateLimiter(name, byDefault), w.OtherClient.RateLimiter(name, byDefault)
		if len(w.each) == 1 {
			l = w.Client.RateLimiter(name)
			limitertest.MustTrySetRate(t, other, limitertest.PerClient(rate, time.Hour))
			keys.Value, keys.Permits = keys.ClientValue, keys.ClientPermits
		}
		add(&limitertest.Wire{RateLimiter: l, Proxy: w.Proxy, Redis: w.Redis, Keys: keys, Rate: rate}, other)
	}
	return w
}

func (w *bundle) take(t testing.TB, permits three) {
	t.Helper()
	for i, n := range permits {
		if n > 0 {
			limitertest.MustAcquire(t, w.others[i], n)
		}
	}
}

// meet lets the calls of scripts, or of all, meet a fault from now on. Each calls before, if there is one.
func (w *bundle) meet(fault string, scripts []*lua.Script, before ...func(s *lua.Script, n int)) {
	met := actions(fault, w.Held)
	w.OnScript(func(s *lua.Script, n int) redistest.Action {
		for _, f := range before {
			f(s, n)
		}
		switch {
		case slices.Contains(twice, fault):
			return met[0]
		case n <= len(met) && (scripts == nil || slices.Contains(scripts, s)):
			return met[n-1]
		}
		return redistest.Pass
	})
}

func release(t testing.TB, limiters []*rratelimiter.RateLimiter, permits three) {
	t.Helper()
	for i, n := range permits {
		if n > 0 {
			require.NoError(t, limiters[i].Release(t.Context(), n))
		}
	}
}

func (w *bundle) tryAll(ctx context.Context, permits int64, timeout time.Duration) (int64, error) {
	ok, err := w.Client.TryAcquireAll(ctx, timeout, limitertest.Claims(permits, w.own...)...)
	return limitertest.Counted(permits, ok, err)
}

func (w *bundle) mustTryAll(t testing.TB, permits int64) {
	t.Helper()
	require.Equal(t, permits, limitertest.Must(w.tryAll(t.Context(), permits, 0))(t))
}

func (w *bundle) checkAll(t testing.TB, held three, when string) bool {
	t.Helper()
	ok := true
	for i, each := range w.each {
		ok = each.CheckHeld(t, held[i], fmt.Sprintf("%s, limiter %d", when, i)) && ok
	}
	return ok
}

// checkSoon is checkAll while requests or answers are held back, of permits in use.
func (w *bundle) checkSoon(t testing.TB, held three, when string) {
	t.Helper()
	for i, each := range w.each {
		assert.Eventually(t, func() bool {
			return limitertest.InUse(t, w.Redis, each.Keys.Permits) == held[i]
		}, time.Minute, time.Millisecond, "%s: permits in use of limiter %d are not %d", when, i, held[i])
	}
}

// sent returns how many calls the Client has sent for its callers.
func (w *bundle) sent() (calls int) {
	for _, s := range lua.All() {
		if s != lua.Merge && s != lua.NoteClient {
			calls += w.Sent(s)
		}
	}
	return calls
}

func (w *bundle) claims(permits three, opts ...rratelimiter.ReserveOption) []rratelimiter.Claim {
	claims := make([]rratelimiter.Claim, len(permits))
	for i, n := range permits {
		claims[i] = w.own[i].Claim(n, opts...)
	}
	return claims
}

// leaving ends after a while, as callers' patience: a timeout may end before answers come again.
func leaving() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(limitertest.Outlasts, cancel)
	return ctx
}

func TestScriptFlush_LostAnswersCountOnce(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		fault  string // EVALSHA, EVAL, EVALSHA ...
		forget int    // before that call, too
	}{{"", 0}, {"pass+drop", 0}, {"drop", 0}, {"pass+cut+pass+drop", 0}, {"pass+drop", 3}, {"pass+drop+pass+drop", 3}} {
		redistest.VirtualServer(t, func(t *testing.T, rdb redistest.Client) {
			w := limitertest.NewWire(t, rdb, limitertest.Hourly(10), false)
			limitertest.MustAcquire(t, w.Other, 3)
			forget := func() { assert.NoError(t, w.Redis.ScriptFlush(t.Context()).Err()) }
			met := actions(tt.fault, nil)
			for _, requests := range [][]limitertest.Request{try(2), {limitertest.TryFor(1), limitertest.TryFor(9), limitertest.TakeFor(1)}} {
				forget()
				w.OnScript(func(s *lua.Script, n int) redistest.Action {
					if s != lua.Acquire {
						return redistest.Pass
					}
					if n == tt.forget {
						forget()
					}
					if n <= len(met) {
						return met[n-1]
					}
					return redistest.Pass
				})
				assert.EqualValues(t, 2, limitertest.Sum(w.Ask(t, requests...)))
			}
			w.CheckHeld(t, 7, "acquired")
			forget()
			require.NoError(t, w.Release(t.Context(), 3), "NOSCRIPT says that it did not run")
			w.CheckHeld(t, 4, "released")
			forget()
			w.On(lua.Release, redistest.Pass, redistest.DropAnswer)
			require.ErrorIs(t, w.Release(t.Context(), 1), rratelimiter.ErrUnknownOutcome)
			w.CheckHeld(t, 3, "released once")
		})
	}
}

// shortIDs reports whether the ids of two calls may meet: the copy of a call that comes a millisecond later may then take
// its own for another's. See TestTryAcquire_DuplicateWithShortID.
func shortIDs(version string) bool {
	return version == limitertest.MembersOf["B"] || version == limitertest.MembersOf["C"]
}

// A short id at a member of this millisecond is the call's own, whose request came twice.
func TestTryAcquire_DuplicateWithShortID(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, limitertest.Rows("B", "C"), func(t *testing.T, layout string) {
		rdb, m := redistest.Mini(t)
		proxy := redistest.MiniProxy(t, m)
		client := limitertest.NewClient(t, proxy.Client(t, nil), rratelimiter.WithRedissonVersion(limitertest.MembersOf[layout]))
		a, b := limitertest.ByDefault(client, "{s}a", limitertest.Hourly(10)), limitertest.ByDefault(client, "{s}b", limitertest.Hourly(10))
		proxy.OnCommand(limitertest.OnEach("eval", redistest.DuplicateLast))
		limitertest.MustAcquire(t, a, 3)
		assert.True(t, limitertest.TryAll(t, client, 2, a, b))
		require.NoError(t, limitertest.Reserve(t, a, 1).Settle(t.Context(), 4))
		limitertest.MustAcquire(t, b, 8)
		assert.EqualValues(t, 3+2+4, limitertest.InUse(t, rdb, limitertest.KeysOf(a).Permits))
		assert.EqualValues(t, 2+8, limitertest.InUse(t, rdb, limitertest.KeysOf(b).Permits))
		proxy.Settle(t)
	})
}

// lose loses the first answers of calls for permits. Before the last of them is lost it calls meanwhile.
func lose(t *testing.T, rdb redistest.Client, answers int, meanwhile func()) {
	t.Helper()
	for _, s := range []*lua.Script{lua.Acquire, lua.AcquireAll} {
		require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source).Err())
	}
	lost := 0
	rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		err := next()
		if lost == answers || !redistest.Calls(cmds[0], lua.Acquire.SHA) && !redistest.Calls(cmds[0], lua.AcquireAll.SHA) {
			return err
		}
		if lost++; lost == answers {
			meanwhile()
		}
		return redistest.Fail(cmds, errors.New("the line is dead"))
	}))
}

// Two attempts were granted 4 permits, and all of them came back before the third: it is decided anew, as long as what
// they were granted can't be in use any more, of several limiters in none. A refusal would name a wait although all is free.
func TestRepeat_AsksAnewOnceItsGrantHasRunOut(t *testing.T) {
	t.Parallel()
	second := []time.Duration{time.Second}
	type row struct {
		intervals []time.Duration     // of each limiter
		ask       limitertest.Request // of one; nil: TryAcquireAll
		released  bool                // of the last limiter, during the interval, by another program
	}
	limitertest.Each(t, map[string]row{
		"TryAcquire":                     {second, limitertest.TryFor(4), false},
		"Take":                           {second, limitertest.TakeFor(4), false},
		"TakeUpTo":                       {second, limitertest.UpToFor(4), false},
		"Reserve":                        {second, limitertest.ReserveFor(4), false},
		"Hold":                           {[]time.Duration{time.Hour}, limitertest.ReserveFor(4, rratelimiter.Hold(time.Second)), false},
		"released, in a longer interval": {[]time.Duration{time.Minute}, limitertest.TakeFor(4), true},
		"TryAcquireAll":                  {[]time.Duration{time.Second, 2 * time.Second}, nil, false},
		"TryAcquireAll, released in the longer one": {[]time.Duration{time.Second, time.Minute}, nil, true},
	}, func(t *testing.T, c row) {
		limitertest.Each(t, limitertest.MembersOf, func(t *testing.T, version string) {
			redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) {
				var cfgs []rratelimiter.Config
				for _, interval := range c.intervals {
					cfgs = append(cfgs, limitertest.Every(10, interval))
				}
				f := limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version)), cfgs...)
				others := f.SeenBy(limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version)))
				lose(t, rdb, 2, func() {
					if c.released {
						require.NoError(t, others.Limiters[len(cfgs)-1].Release(t.Context(), 4))
					}
					step(time.Duration(len(cfgs)) * time.Second)
					for _, l := range others.Limiters {
						require.True(t, limitertest.Take(t, l, 6).Granted) // what has run out goes
					}
				})
				ask := c.ask
				if ask == nil {
					ask = func(*limitertest.Wire) (int64, error) { return limitertest.Counted(4, f.Try(t, 4), nil) }
				}
				got := limitertest.Must(ask(&limitertest.Wire{RateLimiter: f.Limiters[0]}))(t)
				assert.Equal(t, !c.released, got == 4)
				for i, l := range f.Limiters {
					assert.Equal(t, 6+got, limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits))
					assert.Equal(t, 4-got, limitertest.Available(t, others.Limiters[i]))
				}
			})
		})
	})
}

func TestMain(m *testing.M) { limitertest.Main(m) }

const (
	places  = 20
	workers = 8 // of each program
)

// A fleet is programs that handle requests in flight, each through a proxy of its own.
type fleet struct {
	*testing.T

	prefix                       string // of all keys
	busy, most, handled, refused atomic.Int64
}

type program struct {
	proxy  *redistest.Proxy
	client *rratelimiter.Client
	stop   func() // returns when no requests are made any more
	busy   atomic.Int64
	killed atomic.Bool
}

func (f *fleet) start() *program {
	p := &program{proxy: redistest.StartProxy(f, redistest.Shared(f).Addr())}
	p.client = limitertest.OpenClient(p.proxy.Client(f, nil))
	limits := httplimit.New(httplimit.Policy{Limiter: p.client.Keyed(f.prefix, rratelimiter.PerHour(places)), InFlight: true},
		httplimit.WithTimeout(time.Minute), httplimit.WithKey(httplimit.Path()), httplimit.WithErrorHandler(func(*http.Request, error) {})) // callers that have gone
	handler := limits.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		f.handled.Add(1)
		p.busy.Add(1)
		raise(&f.most, f.busy.Add(1))
		defer func() {
			if !p.killed.Load() { // otherwise its place stays taken
				p.busy.Add(-1)
				f.busy.Add(-1)
			}
		}()
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
		if rand.IntN(20) == 0 {
			panic(http.ErrAbortHandler)
		}
	}))
	ctx, end := context.WithCancel(context.Background())
	over := limitertest.Go(func() {
		limitertest.Together(workers, func(worker int) {
			for n := 0; ctx.Err() == nil; n++ {
				// One request of a program, at a time, may be on its way without a caller: the next of its worker waits.
				leaves := time.Minute
				if worker == 0 && n%2 == 0 {
					leaves = time.Duration(1+rand.IntN(5000)) * time.Microsecond
				}
				f.request(handler, leaves)
			}
		})
	})
	p.stop = func() {
		end()
		<-over
	}
	return p
}

func (f *fleet) request(handler http.Handler, leaves time.Duration) {
	defer func() { _ = recover() }()
	ctx, leave := context.WithTimeout(context.Background(), leaves)
	defer leave()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody).WithContext(ctx))
	if w.Code == http.StatusTooManyRequests {
		f.refused.Add(1)
	}
}

// kill lets nothing of a program reach Redis any more, as its death would, and returns how many requests were at its handler.
func (f *fleet) kill(p *program) (held int64) {
	p.proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Cut })
	p.proxy.HangUp()
	p.killed.Store(true)
	p.stop()
	_ = p.client.Close(f.Context())
	return p.busy.Load()
}

// work waits until some more requests were handled.
func (f *fleet) work() {
	before := f.handled.Load()
	require.Eventually(f, func() bool { return f.handled.Load()-before >= 300 }, time.Minute, 5*time.Millisecond)
}

// Never more requests are in flight than there are places, in all programs together, though some are killed. What these held
// stays taken until an interval is over, and nothing else.
func TestInFlight_ProgramsAreKilled(t *testing.T) {
	t.Parallel()
	f := &fleet{T: t, prefix: redistest.Name(t) + ":"}
	l := limitertest.NewClient(t, redistest.Redis(t)).RateLimiter(f.prefix + "http:/")
	stop := func(programs ...*program) {
		for _, p := range programs {
			p.stop()
			require.NoError(t, p.client.Close(t.Context()))
		}
	}
	a, b, c := f.start(), f.start(), f.start()
	f.work()
	held := f.kill(a)
	a = f.start()
	f.work()
	held += f.kill(b)
	b = f.start()
	f.work()
	stop(a, b, c)
	taken := places - limitertest.Available(t, l)
	assert.GreaterOrEqual(t, taken, held, "what was in flight stays taken")
	assert.LessOrEqual(t, taken, int64(2*(workers+1)), "and what was on its way")
	d := f.start()
	f.work()
	stop(d)
	assert.Equal(t, taken, places-limitertest.Available(t, l), "all else came back")
	assert.LessOrEqual(t, f.most.Load(), int64(places), "in flight at the same time")
	assert.Positive(t, f.refused.Load())
	require.NoError(t, limitertest.Second(l.UpdateRate(t.Context(), rratelimiter.Config{Rate: places, Interval: time.Millisecond}, rratelimiter.KeepState())))
	require.Eventually(t, func() bool { return limitertest.Available(t, l) == places }, time.Minute, time.Millisecond)
}
