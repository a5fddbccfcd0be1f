package middleware_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// wait makes a request that waits for its permits, as clients have it, and returns how long it waited. f handles it; it may be nil.
func (s *site) wait(ctx context.Context, r request, f func()) (took time.Duration, err error) {
	start := time.Now()
	questions := limitertest.Must(s.Questions(r))(s.t)
	turn := s.Turn(questions)
	defer turn.Leave()
	ask := turn.Ask
	if len(questions) == 1 && questions[0].Limit.WaitsItself() {
		ask = turn.AskAndWait
	}
	for v := ask(ctx); v.Refused || v.Closed; v = ask(ctx) {
		if err := turn.Sleep(ctx, middleware.RetryAfter(middleware.Live(questions))); err != nil {
			assert.NoError(s.t, s.GiveBack(ctx, questions))
			return time.Since(start), err
		}
	}
	took = time.Since(start)
	end := s.Begin(ctx, r, questions, func(err error) { assert.NoError(s.t, err) })
	if f != nil {
		f()
	}
	if end != nil {
		end(r.status)
	}
	return took, nil
}

// rated are policies named "a", "b" and so on, of limiters of a Client.
func rated(client *rratelimiter.Client, rates ...rratelimiter.Config) []policy {
	var limiters []limit.Limiter
	for _, rate := range rates {
		limiters = append(limiters, client.Keyed("", rate))
	}
	return named(limiters...)
}

// inFlight makes policies limit what is in flight.
func inFlight(policies []policy, at ...int) []policy {
	for _, i := range at {
		policies[i].InFlight = true
	}
	return policies
}

// Requests that wait for a place pass as soon as one is free, however far away the moment is at which that would come back by
// itself, and for a single policy in order. Of several policies each keeps what it has granted.
func TestTurn_WaitsForPlaces(t *testing.T) {
	t.Parallel()
	places, rate, others := rratelimiter.PerHour(2), rratelimiter.PerSecond(5), rratelimiter.PerHour(3)
	limitertest.Virtual(t, map[string]func(*rratelimiter.Client) []policy{
		"alone":               func(c *rratelimiter.Client) []policy { return inFlight(rated(c, places), 0) },
		"beside a rate":       func(c *rratelimiter.Client) []policy { return inFlight(rated(c, places, rate), 0) },
		"beside other places": func(c *rratelimiter.Client) []policy { return inFlight(rated(c, places, others), 0, 1) },
	}, func(t *testing.T, rdb redistest.Client, policies func(*rratelimiter.Client) []policy) {
		of := policies(limitertest.NewClient(t, rdb))
		s := newSite(t, of)
		ctx := limitertest.Within(t, 5*time.Minute)
		var handled, most atomic.Int64
		var order redistest.List[int]
		start := time.Now()
		limitertest.Together(8, func(i int) {
			time.Sleep(time.Duration(i) * time.Millisecond)
			assert.NoError(t, limitertest.Second(s.wait(ctx, request{user: "ann"}, func() {
				order.Add(i)
				most.Store(max(most.Load(), handled.Add(1)))
				time.Sleep(10 * time.Second)
				handled.Add(-1)
			})))
		})
		assert.EqualValues(t, 2, most.Load())
		assert.Less(t, time.Since(start), 40*time.Second+100*time.Millisecond)
		if len(of) == 1 {
			assert.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, order.All())
		}
	})
}

var turns = limitertest.Tests[redistest.Client]{
	// A place that a request keeps while it waits for a rate is one that it still has when it passes: it is not kept for its hold.
	"KeepsNoPlaceThatComesBack": func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		places, rate := client.Keyed("", rratelimiter.PerHour(2)), client.Keyed("", limitertest.Every(1, 10*time.Second))
		require.NoError(t, places.Acquire(t.Context(), "test:a:ann", 1)) // for an hour
		occupy := func(d time.Duration) {
			r, err := places.Limiter("test:a:ann").Reserve(t.Context(), 1, 0)
			assert.True(t, err == nil && r.Granted)
			time.Sleep(d)
			assert.NoError(t, r.Cancel(t.Context()))
		}
		policies := inFlight(named(places, rate), 0)
		policies[0].Hold = 4 * time.Second
		s := newSite(t, policies)
		go occupy(1500 * time.Millisecond)
		synctest.Wait()
		// While the request waits for the place.
		time.AfterFunc(time.Second, func() { assert.NoError(t, rate.Acquire(t.Context(), "test:b:ann", 1)) })
		time.AfterFunc(7*time.Second, func() { occupy(7 * time.Second) })
		assert.GreaterOrEqual(t, limitertest.Must(s.wait(t.Context(), request{user: "ann"}, nil))(t), 14*time.Second)
	},

	// What a request keeps while it waits for another policy is not asked for again.
	"AsksForNothingThatItKeeps": func(t *testing.T, _ redistest.Client) {
		says := func(granted ...bool) *middlewaretest.Returner {
			return &middlewaretest.Returner{Fake: &middlewaretest.Fake{Answer: func(context.Context, int64) (limit.Decision, error) {
				d := limit.Decision{Granted: granted[0], Limit: 9, RetryAfter: time.Second, ResetAfter: time.Minute}
				granted = granted[1:]
				return d, nil
			}}}
		}
		first, second := says(true, false, true), says(false, true)
		assert.Equal(t, 2*time.Second, limitertest.Must(newSite(t, named(first, second)).wait(t.Context(), request{}, nil))(t))
		assert.Len(t, first.Asked(), 3)
		assert.Len(t, first.GivenBack(), 1, "as all were asked at once")
		assert.Len(t, second.Asked(), 2)
		assert.Empty(t, second.GivenBack())
	},

	// A place that comes back while a request is refused is asked for at once.
	"TakesAPlaceThatCameBackMeanwhile": func(t *testing.T, rdb redistest.Client) {
		var slow atomic.Bool // answers, but not what is done
		rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, next func() error) error {
			err := next()
			if slow.Load() {
				time.Sleep(100 * time.Millisecond)
			}
			return err
		}))
		places := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerHour(1))
		s := newSite(t, inFlight(named(places, httplimit.Local(100, time.Second)), 0))
		took := make(chan time.Duration, 1)
		assert.NoError(t, limitertest.Second(s.wait(t.Context(), request{user: "ann"}, func() {
			slow.Store(true)
			go func() {
				d, err := s.wait(t.Context(), request{user: "ann"}, nil)
				assert.NoError(t, err)
				took <- d
			}()
			time.Sleep(50 * time.Millisecond)
			slow.Store(false)
		})))
		assert.Equal(t, 100*time.Millisecond, (<-took).Truncate(50*time.Millisecond))
	},

	// Requests of two programs that want the same two places and first get one each do not wait for each other.
	"WantsTwoPlaces": func(t *testing.T, _ redistest.Client) {
		first, second := new(onePlace), new(onePlace)
		ctx := limitertest.Within(t, 5*time.Second)
		program := func() {
			s := newSite(t, inFlight(named(first, second), 0, 1))
			assert.NoError(t, limitertest.Second(s.wait(ctx, request{}, nil)))
		}
		second.held.Store(true)
		one := limitertest.Go(program) // gets the first, and gives it back since it has to wait for the second
		time.Sleep(5 * time.Millisecond)
		other := limitertest.Go(program) // waits for the first, and asks again while the other does
		time.Sleep(500 * time.Millisecond)
		second.held.Store(false)
		<-one
		<-other
	},

	// A place that all tenants share is not kept from others by a tenant whose requests wait for one of its own.
	"KeepsNoPlaceForAnother": func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		policies := inFlight(rated(client, rratelimiter.PerHour(2), rratelimiter.PerHour(1)), 0, 1)
		policies[0].Keys = keys{func(request) (string, error) { return "all", nil }}
		s := newSite(t, policies)
		assert.NoError(t, limitertest.Second(s.wait(t.Context(), request{user: "ann"}, func() {
			go func() { assert.NoError(t, limitertest.Second(s.wait(t.Context(), request{user: "ann"}, nil))) }()
			time.Sleep(90 * time.Second) // it has asked again and again
			assert.Less(t, limitertest.Must(s.wait(t.Context(), request{user: "bob"}, nil))(t), 100*time.Millisecond)
		})))
		synctest.Wait()
		assert.EqualValues(t, 2, limitertest.Must(client.Keyed("", rratelimiter.PerHour(2)).Peek(t.Context(), "test:a:all", 0))(t).Remaining)
	},
}

func TestTurn(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, turns, func(t *testing.T, rdb redistest.Client, test func(t *testing.T, rdb redistest.Client)) { test(t, rdb) })
}

// onePlace is a limiter with one place, which is taken while held. Its answers take 10 ms.
type onePlace struct{ held atomic.Bool }

func (p *onePlace) Take(ctx context.Context, key string, n int64) (limit.Decision, error) {
	d, _, err := p.TakeReserved(ctx, key, n)
	return d, err
}

func (p *onePlace) TakeReserved(context.Context, string, int64) (limit.Decision, func(context.Context, int64) error, error) {
	granted := p.held.CompareAndSwap(false, true)
	time.Sleep(10 * time.Millisecond)
	if !granted {
		return limit.Decision{Limit: 1, RetryAfter: time.Hour, ResetAfter: time.Hour}, nil, nil
	}
	return limit.Decision{Granted: true, Limit: 1, ResetAfter: time.Hour}, func(context.Context, int64) error {
		p.held.Store(false)
		return nil
	}, nil
}

var aMillisecondAway = redistest.BeforeCommands(func(...redis.Cmder) { time.Sleep(time.Millisecond) })

// flood makes requests of a user, that many at the same time until the time is over, and counts those that pass.
func (s *site) flood(user string, callers int, lasts time.Duration) int64 {
	ctx, cancel := context.WithTimeout(s.t.Context(), lasts)
	defer cancel()
	var passed atomic.Int64
	limitertest.Together(callers, func(int) {
		for ctx.Err() == nil {
			if _, err := s.wait(ctx, request{user: user}, nil); err == nil {
				passed.Add(1)
			} else {
				time.Sleep(100 * time.Millisecond) // its deadline is near
			}
		}
	})
	return passed.Load()
}

// Of three policies that are asked apart, requests that wait waste nothing: what the scarcest allows passes.
func TestTurn_SeveralPoliciesPassWhatTheScarcestAllows(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"keyed", "slidinglog", "foreign"} {
		for _, rates := range [][3]int64{{10, 10, 10}, {30, 20, 10}} {
			t.Run(fmt.Sprint(name, rates), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					rdb, _ := redistest.Mini(t)
					rdb.AddHook(aMillisecondAway)
					var limiters []limit.Limiter
					for _, rate := range rates {
						all := middlewaretest.Limiters(limitertest.NewClient(t, rdb), rate, time.Second)
						all["foreign"] = httplimit.Local(rate, time.Second)
						limiters = append(limiters, all[name])
					}
					s := newSite(t, named(limiters...))
					// Some of the first second's permits may be used a second later, and so on.
					passed := s.flood("ann", 20, 20*time.Second-50*time.Millisecond)
					assert.LessOrEqual(t, passed, int64(200))
					// It is 200 as a rule. Goroutines that wake at one moment run in any order, by which a few are lost.
					assert.GreaterOrEqual(t, passed, int64(180), "90 %% of what the scarcest allows")
				})
			})
		}
	}
}

// A tenant that floods waits for its own limit, and takes none of what all share meanwhile.
func TestTurn_FloodOfATenantLeavesOthersTheSharedLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		rdb.AddHook(aMillisecondAway)
		policies := rated(limitertest.NewClient(t, rdb), rratelimiter.PerSecond(10), rratelimiter.PerSecond(3))
		policies[0].Keys = keys{func(request) (string, error) { return "all", nil }}
		s := newSite(t, policies)
		loud := limitertest.Go(func() { s.flood("loud", 40, 6*time.Second) })
		time.Sleep(2 * time.Second)
		waited := time.Duration(0)
		for range 8 {
			waited += limitertest.Must(s.wait(t.Context(), request{user: "polite"}, nil))(t)
			time.Sleep(500 * time.Millisecond)
		}
		// Goroutines that wake at one moment run in any order: half a second is usual.
		assert.Less(t, waited, 1900*time.Millisecond)
		<-loud
	})
}

// places is a quota of what is in flight.
func places(rate rratelimiter.Config, hold time.Duration) quota {
	return quota{name: "at-once", rate: rate, terms: middleware.Terms{InFlight: true, Hold: hold}}
}

// Never more requests are handled at the same time than the limit says, however long each takes. A place whose program can't renew
// it any more, as if it had been killed, comes back after its hold, or an interval.
func TestInFlight_LastsAsLongAsItsRequest(t *testing.T) {
	t.Parallel()
	for _, hold := range []time.Duration{0, 20 * time.Second} {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			quotas := []quota{places(rratelimiter.PerMinute(2), hold)}
			c, other := newChat(t, rdb, quotas, chatOptions{}), newChat(t, rdb, quotas, chatOptions{})
			other.handle = func(context.Context) {
				time.Sleep(10*time.Minute + 7*time.Second)
				_, questions := other.ask(t.Context(), request{user: "ann"})
				assert.Equal(t, "at-once", refusers(questions))
			}
			c.handle = func(context.Context) { other.ask(t.Context(), request{user: "ann"}) }
			for range 3 {
				c.ask(t.Context(), request{user: "ann"})
				c.check([]int64{2}, "they have ended")
			}
			start := time.Now()
			c.handle = func(context.Context) {
				assert.NoError(t, c.client.Close(t.Context()))
				for other.left()[0] == 1 {
					time.Sleep(time.Second)
				}
				assert.Equal(t, cmp.Or(hold, time.Minute), time.Since(start).Truncate(time.Second))
			}
			c.ask(t.Context(), request{user: "ann"})
		})
	}
}

// A Redis that hangs at the end of a request delays it for the middleware's timeout. The place comes back when it answers, and
// Close waits for that. If it is away then, what the request took comes back, and its status is charged, once it answers again. A
// place is still renewed if that is shortly before it would come back by itself.
func TestInFlight_RedisIsAway(t *testing.T) {
	t.Parallel()
	var over atomic.Bool
	var hangs failing = func(_ []redis.Cmder, next func() error) error {
		for !over.Load() {
			time.Sleep(time.Second)
		}
		return next()
	}
	perHour := []quota{places(rratelimiter.PerHour(1), 0)}
	charged := func(t *testing.T, rdb redistest.Client) []policy {
		charged := rated(limitertest.NewClient(t, rdb), rratelimiter.PerHour(9))
		charged[0].Charge = func(_ request, status int) int64 { return int64(status / 100) }
		return charged
	}
	limitertest.Bubbles(t, map[string]story{
		"hangs at the end": {quotas: perHour, opts: chatOptions{client: rratelimiter.WithCallTimeout(time.Minute)}, steps: []step{
			{handle: fails(&hangs), took: time.Second},
			{look: true, do: func(c *chat) {
				time.AfterFunc(3*time.Second, func() { over.Store(true) })
				assert.NoError(c.t, c.client.Close(c.t.Context()))
				newChat(c.t, c.rdb, perHour, chatOptions{}).check([]int64{1}, "it came back")
			}},
		}},
		"at the end": {quotas: perHour, opts: chatOptions{more: charged}, steps: []step{
			{status: 200, handle: fails(&down)},
			{after: time.Minute, look: true, do: func(c *chat) { assert.Len(c.t, c.errs.Take(), 2) }},
			{look: true, do: fails(nil)},
			{after: time.Minute, look: true, left: []int64{1, 7}},
		}},
		"meanwhile": {quotas: []quota{places(rratelimiter.PerMinute(1), 30*time.Second)}, steps: []step{
			{left: []int64{1}, handle: func(c *chat) {
				time.Sleep(9 * time.Second)
				c.outage.Store(&down)
				time.Sleep(16 * time.Second)
				c.outage.Store(nil)
				for range 20 {
					time.Sleep(time.Second)
					c.check([]int64{0}, "meanwhile")
				}
			}},
		}},
	}, func(t *testing.T, row story) {
		rdb, _ := redistest.Mini(t)
		row.play(t, rdb)
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
		l := limitertest.Must(o.Limit(middleware.Terms{Name: "test", Limiter: w}))(t)
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
		assert.EqualValues(t, 100-13-13-1, limitertest.Must(fallback.Take(t.Context(), "test:k", 1))(t).Remaining)
	})
}
