package memory_test

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A use is a permit that a caller was granted at some moment between two.
type use struct{ after, before time.Duration }

type usage struct {
	mu    sync.Mutex
	start time.Time
	uses  []use
}

func (u *usage) add(after time.Duration, permits int64) {
	now := time.Since(u.start)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.uses = append(u.uses, slices.Repeat([]use{{after, now}}, int(permits))...)
}

// most returns the most permits that were used, for certain, within a span of that length.
func (u *usage) most(span time.Duration) int {
	slices.SortFunc(u.uses, func(a, b use) int { return cmp.Compare(a.after, b.after) })
	most := 0
	for i, first := range u.uses {
		within := 0
		for _, u := range u.uses[i:] {
			if u.after > first.after+span {
				break
			}
			if u.before <= first.after+span {
				within++
			}
		}
		most = max(most, within)
	}
	return most
}

// burst makes a caller use permits in bursts until ctx ends.
func (u *usage) burst(ctx context.Context, l *rratelimiter.RateLimiter, random *rand.Rand) {
	for ctx.Err() == nil {
		for range random.IntN(150) {
			permits := int64(1)
			if random.IntN(50) == 0 {
				permits = 1 + random.Int64N(50)
			}
			timeout := time.Duration(random.IntN(2)) * 10 * ms
			ok, err := l.TryAcquire(context.WithoutCancel(ctx), permits, timeout)
			if err == nil && ok {
				u.add(time.Since(u.start), permits)
			}
			time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond)
		}
		time.Sleep(time.Duration(random.IntN(500)) * ms)
	}
}

// Several Clients with leases and one without, in bursts and through a bad network: what is used obeys the rate for each span of
// the interval less the lease's life, what is charged obeys the limit, and nothing is lost.
func TestLeasesObeyTheLimit(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	const rate, interval, life = 1000, time.Second, 100 * ms
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		name := redistest.Name(t)
		used := &usage{start: time.Now()}
		ctx := limitertest.Within(t, 1500*ms)
		var clients []*rratelimiter.Client
		var callers sync.WaitGroup
		for i := range 4 {
			opts := []rratelimiter.LimiterOption{rratelimiter.WithDefault(limitertest.Every(rate, interval))}
			if i > 0 {
				opts = append(opts, limitertest.Ahead(life))
			}
			proxy := redistest.MiniProxy(t, m)
			faults := rand.New(rand.NewPCG(0, uint64(i)))
			proxy.OnCommand(func(redistest.Command) redistest.Action {
				switch p := faults.IntN(100); {
				case p < 1:
					return redistest.DropAnswer
				case p < 5:
					return redistest.Pass.After(time.Duration(faults.IntN(60)) * ms)
				}
				return redistest.Pass
			})
			client := limitertest.NewClient(t, proxy.Client(t, &redistest.Options{ReadTimeout: time.Minute}))
			clients = append(clients, client)
			l := client.RateLimiter(name, opts...)
			for j := range 3 {
				callers.Go(func() { used.burst(ctx, l, rand.New(rand.NewPCG(0, uint64(10*i+j)))) })
			}
		}
		callers.Wait()
		for _, c := range clients {
			require.NoError(t, c.Close(t.Context()))
		}
		assert.LessOrEqual(t, used.most(interval-life-1), rate)
		assert.Greater(t, len(used.uses), rate, "most permits are used")
		time.Sleep(2 * interval)
		assert.EqualValues(t, rate, limitertest.Available(t, limitertest.NewClient(t, rdb).RateLimiter(name)))
	})
}

// Callers in line come before leases, those of the same handle and of others.
func TestLeaseDoesNotOvertakeTheLine(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]bool{"of the same handle": true, "of another handle": false}, func(t *testing.T, same bool) {
		s := newLeaseScene(t, limitertest.Every(1000, time.Minute), 10*time.Second)
		limitertest.MustAcquire(t, s.Other, 500)
		s.Until(time.Second)
		taken := 500 + s.takeMore(t, 20+500)
		givenBack := 0
		s.Proxy.OnCommand(func(c redistest.Command) redistest.Action {
			if c.Contains(lua.GiveBack.SHA) {
				givenBack++
			}
			return redistest.Pass
		})
		l := s.plain
		if same {
			l = s.RateLimiter
		}
		// More than will be free a minute after the other's 500.
		waits := s.Go(func() (bool, error) { return true, l.Acquire(t.Context(), 1000-taken+500+1) })
		s.CheckInUse(t, 1000, taken)
		for range 20 {
			limitertest.MustAcquire(t, s.RateLimiter, 1)
			taken++
			assert.Equal(t, taken, s.inUse(t), "nothing is taken ahead while a caller waits")
			time.Sleep(ms)
		}
		s.Until(time.Minute + 500*ms)
		assert.Equal(t, "waits", waits.Outcome())
		assert.Equal(t, 1, givenBack)
		s.Until(time.Minute + 2*time.Second)
		assert.NotEqual(t, "waits", waits.Outcome())
	})
}

// A keyedScene is a limitertest.HeldScene beside a limiter of keys that takes permits ahead;
// the scene's limiter is a plain handle of the key "ann".
type keyedScene struct {
	*limitertest.HeldScene

	keyed *rratelimiter.KeyedLimiter
}

// newKeyedScene returns one with a pool of that size: see limitertest.NewHeldSceneOf.
func newKeyedScene(t *testing.T, cfg rratelimiter.Config, pool int, opts ...rratelimiter.LimiterOption) *keyedScene {
	t.Helper()
	of := limitertest.NewHeldSceneOf(t, cfg, &redistest.Options{ReadTimeout: time.Minute, PoolSize: pool})
	s, prefix := &keyedScene{HeldScene: of}, redistest.Name(t)+":"
	s.RateLimiter, s.Other = s.Client.RateLimiter(prefix+"ann"), limitertest.NewClient(t, s.Mini).RateLimiter(prefix+"ann")
	s.keyed = s.Client.Keyed(prefix, cfg, opts...)
	return s
}

// The calls that take a permit of "ann", and must be granted it.
var keyedCalls = map[string]func(ctx context.Context, l *rratelimiter.KeyedLimiter) (bool, error){
	"TryAcquire": func(ctx context.Context, l *rratelimiter.KeyedLimiter) (bool, error) {
		return l.TryAcquire(ctx, "ann", 1, 0)
	},
	"Acquire": func(ctx context.Context, l *rratelimiter.KeyedLimiter) (bool, error) {
		return true, l.Acquire(ctx, "ann", 1)
	},
	"Take": func(ctx context.Context, l *rratelimiter.KeyedLimiter) (bool, error) {
		d, err := l.Take(ctx, "ann", 1)
		return d.Granted, err
	},
	"TakeUpTo": func(ctx context.Context, l *rratelimiter.KeyedLimiter) (bool, error) {
		n, d, err := l.TakeUpTo(ctx, "ann", 1)
		return n == 1 && d.Granted, err
	},
	"TakeReturnable": func(ctx context.Context, l *rratelimiter.KeyedLimiter) (bool, error) {
		d, giveBack, err := l.TakeReturnable(ctx, "ann", 1)
		return d.Granted && giveBack != nil, err
	},
}

// Each call brings a lease and is served from it, in shadow too. Unused permits go back, also
// those of a limiter of keys that is no longer referenced.
func TestLease_ServesEveryCall(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, keyedCalls, func(t *testing.T, call func(context.Context, *rratelimiter.KeyedLimiter) (bool, error)) {
		type row struct {
			kind rratelimiter.RateType
			opts []rratelimiter.LimiterOption
		}
		limitertest.Bubbles(t, map[string]row{
			"plain": {}, "PerClient": {kind: rratelimiter.PerClient},
			"in shadow":                {opts: []rratelimiter.LimiterOption{rratelimiter.WithShadow()}},
			"with a policy":            {opts: []rratelimiter.LimiterOption{rratelimiter.WithFailure(limit.FailOpen())}},
			"with refusals remembered": {opts: []rratelimiter.LimiterOption{rratelimiter.WithRefusalCache()}},
		}, func(t *testing.T, row row) {
			cfg := rratelimiter.Config{Type: row.kind, Rate: 10_000, Interval: time.Minute}
			s := newKeyedScene(t, cfg, 3, append(row.opts, limitertest.Ahead(0))...)
			for i := range 300 {
				ctx := t.Context()
				if i%2 == 0 {
					ctx = context.WithoutCancel(ctx)
				}
				require.NoError(t, limitertest.Granted(call(ctx, s.keyed)))
			}
			assert.Less(t, s.Sent.Scripts(), 25)
			synctest.Wait()
			assert.Less(t, limitertest.Available(t, s.RateLimiter), int64(10_000-300), "there is a lease")
			s.keyed = nil
			s.Until(4 * time.Second)
			assert.EqualValues(t, 10_000-300, limitertest.Available(t, s.RateLimiter))
			keys := limitertest.LimiterKeys(t, s.Mini, s.Name())
			assert.EqualValues(t, 300, limitertest.InUse(t, s.Mini, keys[len(keys)-2]), "of all clients, or the client's own")
		})
	})
}

// Undone grants go back into the lease without a word to Redis, and to Redis if the lease has
// ended: a part of a member of which other parts go back, too.
func TestLease_TakesBackUndoneGrants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newKeyedScene(t, limitertest.Every(10_000, time.Minute), 3, limitertest.Ahead(time.Second))
		taken := int64(0)
		take := func() (limit.Decision, func(context.Context) error, bool) {
			before := s.Sent.Total()
			d, giveBack, err := s.keyed.TakeReturnable(t.Context(), "ann", 1)
			require.NoError(t, err)
			require.True(t, d.Granted)
			taken++
			return d, giveBack, s.Sent.Total() > before
		}
		var all []func(context.Context) error
		for atHand := 0; atHand < 50; {
			_, giveBack, asked := take()
			if all = append(all, giveBack); !asked {
				atHand++
			}
		}
		d, giveBack, asked := take()
		for asked {
			d, giveBack, asked = take()
		}
		before := s.Sent.Total()
		require.ErrorIs(t, giveBack(limitertest.EndedContext(t)), context.Canceled)
		require.NoError(t, giveBack(t.Context()))
		again, _, _ := take()
		assert.Equal(t, d, again, "as if nothing had been taken")
		assert.Equal(t, before, s.Sent.Total())
		taken--
		s.Until(2 * time.Second)
		s.CheckInUse(t, 10_000, taken)
		s.Proxy.OnCommand(redistest.Nth(3, lua.GiveBack.SHA, redistest.DropAnswer))
		limitertest.Together(len(all), func(i int) { assert.NoError(t, all[i](t.Context())) })
		s.CheckInUse(t, 10_000, taken-int64(len(all)))
		require.NoError(t, s.Client.Close(t.Context()))
		require.ErrorIs(t, giveBack(t.Context()), rratelimiter.ErrClosed)
	})
}

// A program is a Client that takes permits of one key, and the answers it should get.
type program struct {
	limit.NoObserver

	keyed  *rratelimiter.KeyedLimiter
	source limit.Source // of the last answer
	mu     sync.Mutex
	alive  bool  // it has a lease
	lease  int64 // permits that are left in that
	leases int   // how many there were
	known  int64 // Remaining of Redis' last answer, less what was taken since
}

func (p *program) Decided(_ context.Context, d limit.Decided) { p.source = d.Source }

func (p *program) Leased(l limit.Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alive, p.lease = !l.Ended, 0
	if p.alive {
		p.lease = l.Permits
		p.leases++
	}
}

// figuresWalk lets programs take permits of one limiter, one after another.
type figuresWalk struct {
	random  *rand.Rand
	free    func() int64 // in Redis
	undone  []func()
	sources map[limit.Source]int
}

const figuresRate = 2000

// step makes a program's call, and compares the answer with what Redis knows.
func (w *figuresWalk) step(t *testing.T, p *program) {
	t.Helper()
	permits := int64(1)
	if w.random.IntN(30) == 0 {
		permits += w.random.Int64N(300)
	}
	d, taken, giveBack := w.call(t, p, permits)
	synctest.Wait()
	w.sources[p.source]++
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.source == limit.FromRedis {
		p.known = w.free() + p.lease
	} else if d.Granted {
		p.known -= taken
		p.lease -= taken
	}
	require.Equal(t, max(0, p.known), d.Remaining, "%s: %+v", p.source, d)
	require.EqualValues(t, figuresRate, d.Limit)
	require.LessOrEqual(t, d.RetryAfter, d.ResetAfter)
	require.Equal(t, d.Granted, d.RetryAfter == 0)
	if d.Granted {
		require.Equal(t, time.Second, d.ResetAfter, "nothing in use lasts longer")
	}
	if giveBack == nil {
		return
	}
	lease, lent := p.leases, p.source == limit.FromMemory
	w.undone = append(w.undone, func() {
		p.mu.Lock()
		if p.leases == lease && p.alive && lent {
			p.known += taken
			p.lease += taken
		}
		p.mu.Unlock()
		require.NoError(t, giveBack(t.Context()))
		synctest.Wait()
	})
}

func (w *figuresWalk) call(t *testing.T, p *program, permits int64) (d limit.Decision, taken int64, giveBack func(context.Context) error) {
	t.Helper()
	var err error
	switch w.random.IntN(8) {
	case 0:
		d, giveBack, err = p.keyed.TakeReturnable(t.Context(), "ann", permits)
	case 1:
		taken, d, err = p.keyed.TakeUpTo(t.Context(), "ann", permits)
		permits = taken
	default:
		d, err = p.keyed.Take(t.Context(), "ann", permits)
	}
	require.NoError(t, err)
	return d, permits, giveBack
}

// Several programs take permits at random. An answer from memory is Redis' last answer, less what the program took since, and was true.
func TestFiguresFromMemory(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, limitertest.Seeds(*rounds), func(t *testing.T, seed uint64) {
		_, m := redistest.Mini(t)
		prefix := redistest.Name(t) + ":"
		plain := limitertest.NewClient(t, redistest.MiniClient(t, m, nil)).RateLimiter(prefix + "ann")
		w := &figuresWalk{random: rand.New(rand.NewPCG(seed, 0)), sources: make(map[limit.Source]int)}
		w.free = func() int64 { return limitertest.Available(t, plain) }
		var all []*program
		for range 4 {
			p := &program{}
			client := limitertest.NewClient(t, redistest.MiniClient(t, m, nil), rratelimiter.WithObserver(p))
			p.keyed = client.Keyed(prefix, limitertest.Every(figuresRate, time.Second), limitertest.Ahead(0), rratelimiter.WithRefusalCache())
			all = append(all, p)
		}
		for range 250 {
			busy := all[w.random.IntN(len(all))]
			for range 1 + w.random.IntN(20) {
				w.step(t, busy)
			}
			if len(w.undone) > 0 && w.random.IntN(3) == 0 {
				w.undone[0]()
				w.undone = w.undone[1:]
			}
			time.Sleep(time.Duration(w.random.IntN(10)) * ms)
			synctest.Wait()
		}
		t.Log(w.sources)
		assert.Greater(t, w.sources[limit.FromMemory], w.sources[limit.FromRedis])
	})
}

// Leases serve callers who come meanwhile, beside refusals that are remembered: each permit is used once.
func TestLease_ServesManyCallersAtOnce(t *testing.T) {
	t.Parallel()
	const rate = 1000
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		client, sent := limitertest.NewClient(t, rdb), limitertest.CountCommands(rdb)
		l := client.RateLimiter(redistest.Name(t), limitertest.Ahead(0), rratelimiter.WithRefusalCache(), rratelimiter.WithDefault(rratelimiter.PerHour(rate)))
		var granted atomic.Int64
		limitertest.Together(8, func(int) {
			for range rate {
				ok, err := l.TryAcquire(t.Context(), 1, 0)
				assert.NoError(t, err)
				if ok {
					granted.Add(1)
				}
			}
		})
		assert.Less(t, sent.Scripts(), 500)
		require.NoError(t, client.Close(t.Context()))
		assert.EqualValues(t, rate, granted.Load())
		assert.Zero(t, limitertest.Available(t, limitertest.NewClient(t, rdb).RateLimiter(l.Name())))
	})
}

// A lease is no larger than a member can be.
func TestLeasesOfLargeRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		sent := limitertest.CountCommands(rdb)
		l := limitertest.NewClient(t, rdb).Keyed("bytes:", limitertest.Every(1<<52, time.Minute), limitertest.Ahead(0))
		for range 1000 {
			limittest.Take(t, l, "ann", 400_000_000)
			time.Sleep(time.Millisecond)
		}
		assert.Less(t, sent.Scripts(), 300)
	})
}

// Requests are under way together, and the answer that brings a lease comes last: Remaining tells of nothing that the others were granted.
func TestLease_OvertakenAnswerCountsOtherGrants(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]func(ctx context.Context, s *keyedScene) (bool, error){
		"Take": func(ctx context.Context, s *keyedScene) (bool, error) {
			d, err := s.keyed.Take(ctx, "ann", 5000)
			return d.Granted, err
		},
		"TryAcquire": func(ctx context.Context, s *keyedScene) (bool, error) { return s.TryAcquire(ctx, 5000, 0) },
		"TryAcquireAll": func(ctx context.Context, s *keyedScene) (bool, error) {
			other := limitertest.ByDefault(s.Client, "{"+s.Name()+"}b", limitertest.Hourly(5000))
			return s.Client.TryAcquireAll(ctx, 0, s.Claim(5000), other.Claim(5000))
		},
	}, func(t *testing.T, call func(ctx context.Context, s *keyedScene) (bool, error)) {
		s := newKeyedScene(t, limitertest.Every(10_000, time.Minute), 20, limitertest.Ahead(0))
		taken := int64(0)
		take := func() int64 {
			taken++
			return limittest.Take(t, s.keyed, "ann", 1).Remaining
		}
		for sent := 0; taken < 30 || take() != limitertest.Available(t, s.Other) || s.Sent.Total() > sent; {
			sent = s.Sent.Total()
			take()
		}
		letGo := s.Hold(t, lua.Acquire, 1)
		first := s.Go(func() (bool, error) { return take() >= 0, nil })
		require.Equal(t, "waits", first.Outcome())
		limitertest.CheckOutcome(t, "true at 0s", s.Go(func() (bool, error) { return call(t.Context(), s) }))
		letGo()
		limitertest.CheckOutcome(t, "true at 0s", first)
		sent := s.Sent.Total()
		assert.LessOrEqual(t, take(), 10_000-5000-taken)
		assert.Equal(t, sent, s.Sent.Total(), "there is no lease")
	})
}

// What a lease that came short says is remembered: once it is used up, Redis is not asked
// before the next permits come back, however often callers ask.
func TestLease_ShortOneSparesCalls(t *testing.T) {
	t.Parallel()
	calls := maps.Clone(keyedCalls)
	delete(calls, "Acquire")  // waits
	delete(calls, "TakeUpTo") // is granted what there is, so no refusal says when there is more
	limitertest.Bubbles(t, calls, func(t *testing.T, call func(context.Context, *rratelimiter.KeyedLimiter) (bool, error)) {
		s := newKeyedScene(t, limitertest.Every(1000, time.Minute), 3, limitertest.Ahead(10*time.Second), rratelimiter.WithRefusalCache())
		other := limitertest.NewClient(t, s.Mini).RateLimiter(s.Name())
		take := func() bool { return limitertest.Must(call(t.Context(), s.keyed))(t) }
		for range 100 {
			require.True(t, take())
		}
		limitertest.MustAcquire(t, other, limitertest.Available(t, other)-10)
		before := s.Sent.Scripts()
		for take() {
		}
		for range 100 {
			require.False(t, take())
		}
		assert.LessOrEqual(t, s.Sent.Scripts()-before, 1)
		assert.Zero(t, limitertest.Available(t, other))
		s.Until(61 * time.Second)
		assert.True(t, take())
	})
}
