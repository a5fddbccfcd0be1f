package waiting_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Many callers wait for two limiters, and permits of one come back one by one.
func TestTryAcquireAll_ThousandWaitersAskForThoseWhoMayBeServed(t *testing.T) {
	t.Parallel()
	const callers, freed = 1000, 50
	limitertest.Bubbles(t, map[string]time.Duration{"near": 0, "far": 20 * ms}, func(t *testing.T, trip time.Duration) {
		rdb, _ := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb)
		f := limitertest.NewFamilyOf(t, client, limitertest.Every(5*freed, time.Hour), limitertest.Every(10*callers, time.Hour))
		var held []*rratelimiter.Reservation
		for range freed {
			held = append(held, limitertest.Reserve(t, f.Limiters[0], 5))
		}
		require.NoError(t, rdb.ScriptLoad(t.Context(), lua.AcquireAll.Source).Err())
		rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, next func() error) error {
			time.Sleep(trip)
			return next()
		}))
		sent := limitertest.CountCommands(rdb)
		var granted atomic.Int64
		for range callers {
			go func() {
				ok, err := client.TryAcquireAll(t.Context(), 10*time.Second, limitertest.Claims(1, f.Limiters...)...)
				assert.NoError(t, err)
				if ok {
					granted.Add(1)
				}
			}()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		first := sent.Scripts()
		assert.LessOrEqual(t, first, 200, "one flight or two of those who could not know")
		for _, r := range held {
			go func() { assert.NoError(t, r.Settle(t.Context(), 4)) }()
			time.Sleep(ms)
		}
		time.Sleep(time.Second)
		assert.EqualValues(t, freed, granted.Load(), "a few round trips are enough")
		time.Sleep(10 * time.Second)
		assert.LessOrEqual(t, sent.Scripts()-first-freed, 2*freed+10, "beside the settlements")
	})
}

// A jointLine is callers who wait for several limiters, of which the first refuses.
type jointLine struct {
	*limitertest.FamilyScene

	ctx   context.Context
	all   []*rratelimiter.RateLimiter
	rival *rratelimiter.RateLimiter // another Client's handle of the first
}

// A jointLineTest is a test of three limiters: the first of that rate, and the others of another, 100 an hour unless it is said.
type jointLineTest struct {
	first, others rratelimiter.Config
	taken         int64 // of the first, by the other Client
	run           func(t *testing.T, l *jointLine)
}

// asks lets a caller wait for permits of the first limiter and of another.
func (l *jointLine) asks(permits int64, patience time.Duration, other int) *limitertest.Caller {
	return l.Go(func() (bool, error) {
		return l.Client.TryAcquireAll(l.ctx, patience, limitertest.Claims(permits, l.all[0], l.all[other])...)
	})
}

// leaver is asks for a caller who leaves when leave is called.
func (l *jointLine) leaver(t *testing.T, permits int64, other int) (leave func()) {
	return l.Leaver(t, func(ctx context.Context) (bool, error) {
		return l.Client.TryAcquireAll(ctx, forever, limitertest.Claims(permits, l.all[0], l.all[other])...)
	})
}

func (l *jointLine) frees(t *testing.T, permits int64) {
	t.Helper()
	require.NoError(t, l.all[0].Release(t.Context(), permits))
}

var jointLineTests = map[string]jointLineTest{
	// In a line of its own, whatever the others ask for: there is one for each limiter that refuses.
	"waiters are served in order": {first: limitertest.Every(10, time.Hour), taken: 10, run: func(t *testing.T, l *jointLine) {
		var all []*limitertest.Caller
		for i := range 9 {
			all = append(all, l.asks(1, forever, 1+i%2))
		}
		before := l.Sent.Scripts()
		for i := range 3 {
			l.Until(time.Duration(i+1) * 10 * ms)
			l.frees(t, 3)
			synctest.Wait()
			limitertest.CheckOutcome(t, fmt.Sprintf("true at %v", l.Now()), all[3*i:3*i+3]...)
		}
		assert.LessOrEqual(t, l.Sent.Scripts()-before, 3*(1+3+1), "a release, three grants, a refusal that says when to ask again")
	}},
	"one who waits for another limiter holds up no one": {
		first: limitertest.Every(2, time.Minute), others: limitertest.Every(2, time.Hour), taken: 2, run: func(t *testing.T, l *jointLine) {
			limitertest.MustAcquire(t, l.Rival.RateLimiter(l.all[1].Name()), 2)
			stuck, other := l.asks(1, forever, 1), l.asks(1, forever, 2)
			l.Until(time.Second)
			l.frees(t, 1)
			l.Until(2 * time.Second)
			limitertest.CheckOutcome(t, "waits", stuck)
			limitertest.CheckOutcome(t, "true at 1s", other)
			l.frees(t, 1)
			require.NoError(t, l.all[1].Release(t.Context(), 1))
			l.Until(3 * time.Second)
			limitertest.CheckOutcome(t, "true at 2s", stuck)
		},
	},
	// It is too large for what comes back, and holds up smaller ones no longer.
	"a large claim yields after an interval": {first: limitertest.Every(10, 10*time.Second), taken: 5, run: func(t *testing.T, l *jointLine) {
		l.Until(time.Second)
		limitertest.MustAcquire(t, l.rival, 4)
		go func() { // 5 or 4 come back in turn, and the other program takes 4 of them again
			for t.Context().Err() == nil {
				_ = l.rival.Acquire(t.Context(), 4)
			}
		}()
		large := l.asks(8, forever, 1)
		small := []*limitertest.Caller{l.asks(1, forever, 1), l.asks(1, forever, 1)}
		l.Until(10 * time.Second)
		limitertest.CheckOutcome(t, "waits", small...)
		l.Until(14 * time.Second)
		limitertest.CheckOutcome(t, "waits", large)
		for _, c := range small {
			end, done := c.Ended()
			assert.True(t, done && end.Ok, c.Outcome())
		}
	}},
	// If the last answer of those who wait is old.
	"one who joins makes the line ask": {first: limitertest.Every(2, time.Hour), taken: 2, run: func(t *testing.T, l *jointLine) {
		waits := l.asks(1, forever, 1)
		l.Until(time.Second)
		require.NoError(t, l.rival.Release(t.Context(), 2))
		l.Until(2 * time.Second)
		joins := l.asks(1, forever, 1)
		l.Until(3 * time.Second)
		limitertest.CheckOutcome(t, "true at 2s", waits, joins)
	}},
	// While it is asked for, or while it waits.
	"the first that leaves wakes the next": {first: limitertest.Every(5, time.Hour), taken: 3, run: func(t *testing.T, l *jointLine) {
		leave := l.leaver(t, 3, 1)
		second, third := l.asks(2, forever, 1), l.asks(1, forever, 1)
		l.Until(100 * ms)
		limitertest.CheckOutcome(t, "waits", second)
		leave()
		l.Until(200 * ms)
		limitertest.CheckOutcome(t, "true at 100ms", second)
		letGo := l.Hold(t, lua.AcquireAll, 1)
		l.frees(t, 1)
		l.Until(300 * ms)
		limitertest.CheckOutcome(t, "waits", third)
		letGo()
		l.Until(400 * ms)
		limitertest.CheckOutcome(t, "true at 300ms", third)
	}},
	"waiters of different limiters keep them alive": {
		first: limitertest.Every(1, time.Hour), others: limitertest.Alive(rratelimiter.Overall, 9, time.Second), taken: 1,
		run: func(t *testing.T, l *jointLine) {
			one, two := l.asks(1, forever, 1), l.asks(1, forever, 2)
			l.Until(time.Minute)
			limitertest.CheckOutcome(t, "waits", one, two)
			for _, other := range l.all[1:] {
				assert.True(t, limitertest.Must(other.Exists(t.Context()))(t))
			}
		},
	},
	"an observer sees how many wait": {first: limitertest.Every(3, time.Hour), taken: 3, run: func(t *testing.T, l *jointLine) {
		seen := &limitertest.Recorder{}
		l.Client = limitertest.NewClient(t, l.Redis, rratelimiter.WithObserver(seen))
		for i, other := range l.all {
			l.all[i] = l.Client.RateLimiter(other.Name())
		}
		l.asks(1, time.Second, 1)
		l.asks(1, time.Minute, 1)
		leave := l.leaver(t, 1, 1)
		l.Until(2 * time.Second)
		leave()
		synctest.Wait()
		l.frees(t, 1)
		synctest.Wait()
		for _, other := range l.all[:2] {
			assert.Equal(t, []int{1, 2, 3, 2, 1, 0}, seen.Callers(other.Name()))
		}
	}},
	// The next in line is refused after its time: those behind it have not been asked for, but the server has answered.
	"one behind a late refusal is refused": {first: limitertest.Every(1, time.Hour), taken: 1, run: func(t *testing.T, l *jointLine) {
		first := l.asks(1, 10*time.Second, 1)
		l.Until(time.Millisecond)
		second, third := l.asks(1, 10*time.Second, 1), l.asks(1, 12*time.Second, 1)
		l.Until(9900 * ms)
		letGo := l.Hold(t, lua.AcquireAll, 1)
		l.Until(10005 * ms)
		letGo()
		l.Until(13 * time.Second)
		limitertest.CheckOutcome(t, "false at 10s", first)
		limitertest.CheckOutcome(t, "false at 10.005s", second)
		limitertest.CheckOutcome(t, "false at 12.001s", third)
	}},
	// A caller asks at once, because of another limiter, and leaves: no question is under way in the time until those who
	// wait ask again, so nothing has gone unanswered then.
	"waiters outlive one who left unanswered": {first: limitertest.Every(1, time.Hour), taken: 1, run: func(t *testing.T, l *jointLine) {
		var all []*limitertest.Caller
		for range 3 {
			all = append(all, l.asks(1, 10*time.Minute, 1))
		}
		l.Until(time.Second)
		letGo := l.Hold(t, lua.AcquireAll, 1)
		l.leaver(t, 1, 2)()
		letGo()
		l.Until(11 * time.Minute)
		limitertest.CheckOutcome(t, "false at 10m0s", all...)
	}},
	// All learn that the server is down by the questions of a few.
	"waiters fail together in an outage": {first: limitertest.Every(1, time.Hour), taken: 1, run: func(t *testing.T, l *jointLine) {
		var all []*limitertest.Caller
		for range 50 {
			all = append(all, l.asks(1, forever, 1))
		}
		before := l.Sent.Scripts()
		l.Proxy.OnCommand(limitertest.OnEach(lua.AcquireAll.SHA, redistest.Swallow))
		l.Until(2 * time.Minute)
		for _, c := range all {
			end, _ := c.Ended()
			require.ErrorIs(t, end.Err, rratelimiter.ErrUnavailable)
		}
		assert.LessOrEqual(t, l.Sent.Scripts()-before, 20)
	}},
	// Permits come back while a caller asks beside one who has been refused: its grant lets the other ask.
	"a grant beside a refusal wakes who waits": {first: limitertest.Every(6, time.Hour), run: func(t *testing.T, l *jointLine) {
		held := limitertest.Reserve(t, l.all[0], 5)
		waits := l.asks(5, forever, 1)
		l.Until(time.Second)
		letGo := l.Hold(t, lua.AcquireAll, 1)
		beside := l.asks(1, forever, 2)
		l.Until(1100 * ms)
		require.NoError(t, held.Settle(t.Context(), 0))
		l.Until(1200 * ms)
		letGo()
		l.Until(5 * time.Second)
		limitertest.CheckOutcome(t, "true at 1.2s", beside, waits)
	}},
}

func TestJointLine(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, jointLineTests, func(t *testing.T, test jointLineTest) {
		others := cmp.Or(test.others, limitertest.Every(100, time.Hour))
		s, f := limitertest.NewFamilyScene(t, test.first, others, others)
		l := &jointLine{s, t.Context(), f.Limiters, s.Rival.RateLimiter(f.Limiters[0].Name())}
		if test.taken > 0 {
			limitertest.MustAcquire(t, l.rival, test.taken)
		}
		test.run(t, l)
	})
}

// Callers wait for two of three limiters or for one, some leave, and reservations are settled for nothing. Each is
// answered by the end of its time, what was granted is in use, and who is left has not enough permits.
func TestTryAcquireAll_RandomWaiters(t *testing.T) {
	t.Parallel()
	const rate, callers = 20, 40
	limitertest.Bubbles(t, limitertest.Seeds(6), func(t *testing.T, seed uint64) {
		draw := rand.New(rand.NewPCG(seed, 1))
		hour := limitertest.Every(rate, time.Hour)
		c := rratelimiter.New(limitertest.FarAway(t, 10*ms))
		f := limitertest.NewFamilyOf(t, c, hour, hour, hour)
		var used [3]atomic.Int64
		held, places := []*rratelimiter.Reservation{}, draw.Perm(3*rate/2)
		for _, place := range places {
			held = append(held, limitertest.Reserve(t, f.Limiters[place%3], 2))
			used[place%3].Add(2)
		}
		waiting := make([]atomic.Bool, callers) // for good
		wants := make([][3]int64, callers)
		for i := range callers {
			first := draw.IntN(3)
			permits, timeout, leaves := 1+draw.Int64N(4), time.Duration(1+draw.IntN(8))*time.Second, draw.IntN(5) == 0
			all := []int{first, (first + 1) % 3}
			if draw.IntN(4) == 0 {
				all = all[:1]
			}
			if draw.IntN(2) == 0 {
				timeout = 20 * time.Minute
			}
			var claims []rratelimiter.Claim
			for _, at := range all {
				wants[i][at] = permits
				claims = append(claims, f.Limiters[at].Claim(permits))
			}
			waiting[i].Store(true)
			go func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if leaves {
					time.AfterFunc(timeout/2, cancel)
				}
				start := time.Now()
				ok, err := c.TryAcquireAll(ctx, timeout, claims...)
				waiting[i].Store(false)
				assert.LessOrEqual(t, time.Since(start), timeout+time.Second)
				if err != nil {
					assert.True(t, leaves, fmt.Sprint(err))
				}
				for at := range used {
					if ok {
						used[at].Add(wants[i][at])
					}
				}
			}()
			time.Sleep(time.Duration(1+draw.IntN(20)) * ms)
		}
		for i, r := range held[:len(held)*2/3] {
			time.Sleep(time.Duration(draw.IntN(150)) * ms)
			go func() { assert.NoError(t, r.Settle(t.Context(), 0)) }()
			used[places[i]%3].Add(-2)
		}
		time.Sleep(3 * time.Minute) // twice the longest until they ask again, and an attempt
		synctest.Wait()
		var free [3]int64
		for at, l := range f.Limiters {
			free[at] = limitertest.Available(t, l)
			assert.Equal(t, rate-free[at], used[at].Load(), l.Name())
		}
		first := [3]bool{true, true, true}
		for i, want := range wants {
			if !waiting[i].Load() {
				continue
			}
			mayBeServed := true
			for at, permits := range want {
				mayBeServed = mayBeServed && (permits == 0 || first[at] && permits <= free[at])
			}
			assert.False(t, mayBeServed, "no one before it wants the same, and it waits for %v of %v", want, free)
			for at, permits := range want {
				first[at] = first[at] && permits == 0
			}
		}
		time.Sleep(20 * time.Minute)
		for i := range waiting {
			assert.False(t, waiting[i].Load(), "answered by the end of its time")
		}
		limitertest.CheckIdle(t, c)
		assert.NoError(t, c.Close(t.Context()))
	})
}

// A meanwhileScene is a limiter of which nothing is free, and whose refusals can be kept back.
type meanwhileScene struct {
	*limitertest.HeldScene

	reservation *rratelimiter.Reservation
	undo        func(context.Context) error
	land        func() // the last grant, which is on its way
	leave       func() // its caller, before it lands
}

func newMeanwhileScene(t *testing.T) *meanwhileScene {
	t.Helper()
	cfg := limitertest.Every(10, time.Hour)
	s := &meanwhileScene{HeldScene: limitertest.NewHeldSceneOf(t, cfg, &redistest.Options{ReadTimeout: time.Minute, PoolSize: 20})}
	s.RateLimiter = limitertest.ByDefault(s.Client, s.Name(), cfg)
	s.reservation = limitertest.Reserve(t, s.RateLimiter, 4)
	limitertest.MustAcquire(t, s.RateLimiter, 4)
	var err error
	_, s.undo, err = s.Client.Keyed("", cfg).TakeReturnable(t.Context(), s.Name(), 1)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	granted := make(chan struct{})
	s.Proxy.OnCommand(redistest.Nth(1, lua.Acquire.SHA, redistest.Pass.When(granted)))
	s.StartTryAcquire(ctx, 1, 0)
	s.land = sync.OnceFunc(func() { close(granted) })
	t.Cleanup(s.land)
	s.leave = func() {
		cancel()
		time.Sleep(ms)
		s.land()
	}
	return s
}

// frees are what frees permits by the same Client.
var frees = map[string]func(ctx context.Context, s *meanwhileScene) error{
	"SetRate": func(ctx context.Context, s *meanwhileScene) error { return s.SetRate(ctx, rratelimiter.PerSecond(20)) },
	"Delete":  func(ctx context.Context, s *meanwhileScene) error { return limitertest.Second(s.Delete(ctx)) },
	"Release": func(ctx context.Context, s *meanwhileScene) error {
		s.land() // otherwise it would wait
		return s.Release(ctx, 4)
	},
	"Rename": func(ctx context.Context, s *meanwhileScene) error {
		return limitertest.ReplaceBy(rratelimiter.PerSecond(20))(ctx, s.Client, s.RateLimiter)
	},
	"Settle": func(ctx context.Context, s *meanwhileScene) error { return s.reservation.Settle(ctx, 1) },
	"undo":   func(ctx context.Context, s *meanwhileScene) error { return s.undo(ctx) },
	"a caller leaves a grant": func(_ context.Context, s *meanwhileScene) error {
		s.leave()
		return nil
	},
}

// A refusal may be older than permits that were freed while it was on its way: the caller who got it asks again at once.
func TestRefusal_OlderThanPermitsFreedMeanwhile(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]func(t *testing.T, s *meanwhileScene) (letGo func(), waiting *limitertest.Caller){
		"the first of a line": func(t *testing.T, s *meanwhileScene) (func(), *limitertest.Caller) {
			letGo := s.Hold(t, lua.Acquire, 1)
			return letGo, s.StartAcquire(t.Context(), 1)
		},
		"in line": func(t *testing.T, s *meanwhileScene) (func(), *limitertest.Caller) {
			first := s.StartAcquire(t.Context(), 1)
			s.Until(20 * ms)
			letGo := s.Hold(t, lua.Acquire, 1)
			s.StartAcquire(t.Context(), 3) // makes the line ask
			s.Until(40 * ms)
			return letGo, first
		},
		"several limiters": func(t *testing.T, s *meanwhileScene) (func(), *limitertest.Caller) {
			letGo := s.Hold(t, lua.AcquireAll, 1)
			other := limitertest.ByDefault(s.Client, limitertest.Besides(s.Name()), rratelimiter.PerHour(10))
			both := limitertest.Claims(1, s.RateLimiter, other)
			return letGo, s.Go(func() (bool, error) { return s.Client.TryAcquireAll(t.Context(), forever, both...) })
		},
	}, func(t *testing.T, start func(t *testing.T, s *meanwhileScene) (letGo func(), waiting *limitertest.Caller)) {
		limitertest.Bubbles(t, frees, func(t *testing.T, free func(context.Context, *meanwhileScene) error) {
			s := newMeanwhileScene(t)
			letGo, waiting := start(t, s)
			freeing := s.Go(func() (bool, error) { return true, free(context.WithoutCancel(t.Context()), s) })
			assert.Equal(t, "waits", waiting.Outcome())
			s.Until(60 * ms)
			letGo()
			s.Until(100 * ms)
			end, done := freeing.Ended()
			assert.True(t, done)
			assert.NoError(t, end.Err)
			end, done = waiting.Ended()
			assert.True(t, done && end.Ok, waiting.Outcome())
		})
	})
}
