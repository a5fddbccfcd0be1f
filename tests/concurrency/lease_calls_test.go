package concurrency_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A keyedScene is a limitertest.HeldScene beside a limiter of keys that takes permits ahead;
// the scene's limiter is a plain handle of the key "ann".
type keyedScene struct {
	*limitertest.HeldScene

	keyed *rratelimiter.KeyedLimiter
}

func newKeyedScene(t *testing.T, cfg rratelimiter.Config, life time.Duration, opts ...rratelimiter.LimiterOption) *keyedScene {
	t.Helper()
	s := &keyedScene{HeldScene: limitertest.NewHeldScene(t, cfg)}
	prefix := redistest.Name(t) + ":"
	s.RateLimiter = s.Client.RateLimiter(prefix + "ann")
	s.keyed = s.Client.Keyed(prefix, cfg, append(opts, limitertest.Ahead(life))...)
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

// Each call brings a lease and is served from it, in shadow too. What is left goes back, also
// of a limiter of keys that nobody holds any more.
func TestALeaseServesEveryCall(t *testing.T) {
	t.Parallel()
	each(t, keyedCalls, func(t *testing.T, call func(context.Context, *rratelimiter.KeyedLimiter) (bool, error)) {
		bubbles(t, map[string][]rratelimiter.LimiterOption{
			"plain": nil, "in shadow": {rratelimiter.WithShadow()},
			"with a policy": {rratelimiter.WithFailure(limit.FailOpen())},
			"with notices":  {rratelimiter.WithRefusalCache(rratelimiter.WithNotices())},
		}, func(t *testing.T, opts []rratelimiter.LimiterOption) {
			s := newKeyedScene(t, limitertest.Every(10_000, time.Minute), 0, opts...)
			for range 300 {
				granted, err := call(t.Context(), s.keyed)
				require.NoError(t, err)
				require.True(t, granted)
			}
			assert.Less(t, s.Sent.Scripts(), 25)
			synctest.Wait()
			assert.Greater(t, limitertest.InUse(t, s.Mini, limitertest.KeysOf(s.RateLimiter).Permits), int64(300), "there is a lease")
			s.keyed = nil
			s.Until(4 * time.Second)
			s.CheckInUse(t, 10_000, 300)
		})
	})
}

// What is undone goes back into the lease without a word to Redis, and to Redis if that has
// ended: a part of a member of which other parts go back, too.
func TestALeaseTakesBackWhatIsUndone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newKeyedScene(t, limitertest.Every(10_000, time.Minute), time.Second)
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
		require.ErrorIs(t, giveBack(endedContext(t)), context.Canceled)
		require.NoError(t, giveBack(t.Context()))
		again, _, _ := take()
		assert.Equal(t, d, again, "as if nothing had been taken")
		assert.Equal(t, before, s.Sent.Total())
		taken--

		s.Until(2 * time.Second)
		s.CheckInUse(t, 10_000, taken)
		s.Proxy.OnCommand(redistest.Nth(3, lua.GiveBack.SHA, redistest.DropAnswer))
		together(len(all), func(i int) { assert.NoError(t, all[i](t.Context())) })
		s.CheckInUse(t, 10_000, taken-int64(len(all)))
		require.NoError(t, s.Client.Close(t.Context()))
		require.ErrorIs(t, giveBack(t.Context()), rratelimiter.ErrClosed)
	})
}

// A program is a Client that takes permits of one key, and what it should be told of them.
type program struct {
	limit.NoObserver

	keyed  *rratelimiter.KeyedLimiter
	source limit.Source // of the last answer
	mu     sync.Mutex
	alive  bool  // it has a lease
	lease  int64 // permits that are left in that
	leases int   // how many there were
	known  int64 // Remaining as Redis told it last, less what was taken since
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

// figuresWalk has programs take permits of one limiter, one after another.
type figuresWalk struct {
	random  *rand.Rand
	free    func() int64 // in Redis
	undone  []func()
	sources map[limit.Source]int
}

const figuresRate = 2000

// step has a program make a call, and holds the answer against what Redis knows.
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

// Several programs take permits at random. What one is told from memory is what Redis told it
// last, less what it took since, and that was true.
func TestFiguresFromMemory(t *testing.T) {
	t.Parallel()
	bubbles(t, seeds(*rounds), func(t *testing.T, seed uint64) {
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

// What a lease that came short says is remembered: once it is used up, Redis is not asked
// before the next permits come back, however often callers ask.
func TestALeaseThatComesShortSparesCalls(t *testing.T) {
	t.Parallel()
	calls := maps.Clone(keyedCalls)
	delete(calls, "Acquire")  // waits
	delete(calls, "TakeUpTo") // is granted what there is, so no refusal says when there is more
	bubbles(t, calls, func(t *testing.T, call func(context.Context, *rratelimiter.KeyedLimiter) (bool, error)) {
		s := newKeyedScene(t, limitertest.Every(1000, time.Minute), 10*time.Second, rratelimiter.WithRefusalCache())
		other := limitertest.NewClient(t, s.Mini).RateLimiter(s.Name())
		take := func() bool {
			granted, err := call(t.Context(), s.keyed)
			require.NoError(t, err)
			return granted
		}
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
