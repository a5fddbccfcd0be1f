package waiting_test

import (
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
	"github.com/rratelimiter/rratelimiter/limit"
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
			r, err := f.Limiters[0].Reserve(t.Context(), 5, 0)
			require.NoError(t, err)
			held = append(held, r)
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

// In a line of its own, whatever the others ask for: there is one for each limiter that refuses.
func TestTryAcquireAll_WaitersAreServedInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(10, time.Hour), limitertest.Every(100, time.Hour), limitertest.Every(100, time.Hour))
		limitertest.MustAcquire(t, s.Rival.RateLimiter(f.Limiters[0].Name()), 10)
		var all []*limitertest.Caller
		for i := range 9 {
			claims := limitertest.Claims(1, f.Limiters[0], f.Limiters[1+i%2])
			all = append(all, s.Go(func() (bool, error) { return f.Client.TryAcquireAll(t.Context(), forever, claims...) }))
		}
		before := s.Sent.Scripts()
		for i := range 3 {
			s.Until(time.Duration(i+1) * 10 * ms)
			require.NoError(t, f.Limiters[0].Release(t.Context(), 3))
			synctest.Wait()
			limitertest.CheckOutcome(t, fmt.Sprintf("true at %v", s.Now()), all[3*i:3*i+3]...)
		}
		assert.LessOrEqual(t, s.Sent.Scripts()-before, 3*(1+3+1), "a release, three grants, a refusal that says when to ask again")
	})
}

// One that waits for a limiter of its own holds up no others.
func TestTryAcquireAll_WaiterForAnotherLimiterHoldsUpNoOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(2, time.Minute), limitertest.Every(2, time.Hour), limitertest.Every(2, time.Hour))
		common, full, free := f.Limiters[0], f.Limiters[1], f.Limiters[2]
		limitertest.MustAcquire(t, s.Rival.RateLimiter(common.Name()), 2)
		limitertest.MustAcquire(t, s.Rival.RateLimiter(full.Name()), 2)
		try := func(with *rratelimiter.RateLimiter) *limitertest.Caller {
			return s.Go(func() (bool, error) {
				return f.Client.TryAcquireAll(t.Context(), forever, common.Claim(1), with.Claim(1))
			})
		}
		stuck, other := try(full), try(free)
		s.Until(time.Second)
		require.NoError(t, common.Release(t.Context(), 1))
		s.Until(2 * time.Second)
		assert.Equal(t, "waits", stuck.Outcome())
		assert.Equal(t, "true at 1s", other.Outcome())
		require.NoError(t, common.Release(t.Context(), 1))
		require.NoError(t, full.Release(t.Context(), 1))
		s.Until(3 * time.Second)
		assert.Equal(t, "true at 2s", stuck.Outcome())
	})
}

// A claim that is too large for what comes back holds up smaller ones for an interval.
func TestTryAcquireAll_LargeClaimYieldsAfterAnInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(10, 10*time.Second), limitertest.Every(100, time.Hour))
		rival := s.Rival.RateLimiter(f.Limiters[0].Name())
		limitertest.MustAcquire(t, rival, 5)
		s.Until(time.Second)
		limitertest.MustAcquire(t, rival, 4)
		go func() { // 5 or 4 come back in turn, and the other program takes 4 of them again
			for t.Context().Err() == nil {
				_ = rival.Acquire(t.Context(), 4)
			}
		}()
		large := s.TryAll(t.Context(), f, 8, forever)
		var small []*limitertest.Caller
		for range 2 {
			small = append(small, s.TryAll(t.Context(), f, 1, forever))
		}
		s.Until(10 * time.Second)
		limitertest.CheckOutcome(t, "waits", small...)
		s.Until(14 * time.Second)
		assert.Equal(t, "waits", large.Outcome())
		for _, c := range small {
			end, done := c.Ended()
			assert.True(t, done && end.Ok, c.Outcome())
		}
	})
}

// All learn that the server is down by the questions of a few.
func TestTryAcquireAll_WaitersFailTogetherInAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(1, time.Hour), limitertest.Every(9, time.Hour))
		require.True(t, f.SeenBy(s.Rival).Try(t, 1))
		client := rratelimiter.New(s.Redis, rratelimiter.WithCallTimeout(3*time.Second))
		f = f.SeenBy(client)
		var all []*limitertest.Caller
		for range 50 {
			all = append(all, s.TryAll(t.Context(), f, 1, forever))
		}
		before := s.Sent.Scripts()
		s.Proxy.OnCommand(limitertest.OnEach(lua.AcquireAll.SHA, redistest.Swallow))
		s.Until(2 * time.Minute)
		for _, c := range all {
			end, done := c.Ended()
			require.True(t, done)
			require.ErrorIs(t, end.Err, rratelimiter.ErrUnavailable)
		}
		assert.LessOrEqual(t, s.Sent.Scripts()-before, 20)
		require.NoError(t, client.Close(t.Context()))
	})
}

// A caller who joins makes those who wait ask, if their last answer is old.
func TestTryAcquireAll_JoiningMakesLineAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(2, time.Hour), limitertest.Every(9, time.Hour))
		rival := s.Rival.RateLimiter(f.Limiters[0].Name())
		limitertest.MustAcquire(t, rival, 2)
		waits := s.TryAll(t.Context(), f, 1, forever)
		s.Until(time.Second)
		require.NoError(t, rival.Release(t.Context(), 2))
		s.Until(2 * time.Second)
		joins := s.TryAll(t.Context(), f, 1, forever)
		s.Until(3 * time.Second)
		limitertest.CheckOutcome(t, "true at 2s", waits, joins)
	})
}

// The first goes away while it is asked for, or while it waits: the next is asked for.
func TestTryAcquireAll_FirstWaiterThatLeavesWakesTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(5, time.Hour), limitertest.Every(9, time.Hour))
		limitertest.MustAcquire(t, s.Rival.RateLimiter(f.Limiters[0].Name()), 3)
		leave := s.Leaver(t, func(ctx context.Context) (bool, error) {
			return f.Client.TryAcquireAll(ctx, forever, limitertest.Claims(3, f.Limiters...)...)
		})
		second := s.TryAll(t.Context(), f, 2, forever)
		third := s.TryAll(t.Context(), f, 1, forever)
		s.Until(100 * ms)
		assert.Equal(t, "waits", second.Outcome())
		leave()
		s.Until(200 * ms)
		assert.Equal(t, "true at 100ms", second.Outcome())
		letGo := s.Hold(t, lua.AcquireAll, 1)
		require.NoError(t, f.Limiters[0].Release(t.Context(), 1))
		s.Until(300 * ms)
		assert.Equal(t, "waits", third.Outcome())
		letGo()
		s.Until(400 * ms)
		assert.Equal(t, "true at 300ms", third.Outcome())
	})
}

// Callers who wait for one limiter keep their others alive.
func TestTryAcquireAll_WaitersOfDifferentLimitersKeepThemAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(1, time.Hour),
			limitertest.Alive(rratelimiter.Overall, 9, time.Second), limitertest.Alive(rratelimiter.Overall, 9, time.Second))
		limitertest.MustAcquire(t, s.Rival.RateLimiter(f.Limiters[0].Name()), 1)
		start := func(l *rratelimiter.RateLimiter) *limitertest.Caller {
			return s.Go(func() (bool, error) {
				return f.Client.TryAcquireAll(t.Context(), forever, f.Limiters[0].Claim(1), l.Claim(1))
			})
		}
		one, two := start(f.Limiters[1]), start(f.Limiters[2])
		s.Until(time.Minute)
		limitertest.CheckOutcome(t, "waits", one, two)
		for _, l := range f.Limiters[1:] {
			ttl, _, err := l.TTL(t.Context())
			require.NoError(t, err)
			assert.Positive(t, ttl)
		}
	})
}

// waiters keeps how many callers an observer has last heard of.
type waiters struct {
	limit.NoObserver
	sync.Map
}

func (w *waiters) Waiting(limiter string, callers int) { w.Store(limiter, callers) }

func TestTryAcquireAll_ObserverSeesWaiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(3, time.Hour), limitertest.Every(9, time.Hour))
		seen := &waiters{}
		f = f.SeenBy(limitertest.NewClient(t, s.Redis, rratelimiter.WithObserver(seen)))
		require.True(t, f.Try(t, 3))
		check := func(want int) {
			synctest.Wait()
			for _, l := range f.Limiters {
				callers, _ := seen.Load(l.Name())
				assert.Equal(t, want, callers)
			}
		}
		s.TryAll(t.Context(), f, 1, time.Second)
		s.TryAll(t.Context(), f, 1, time.Minute)
		leave := s.Leaver(t, func(ctx context.Context) (bool, error) {
			return f.Client.TryAcquireAll(ctx, forever, limitertest.Claims(1, f.Limiters...)...)
		})
		check(3)
		s.Until(2 * time.Second)
		check(2)
		leave()
		check(1)
		require.NoError(t, f.Limiters[0].Release(t.Context(), 1))
		check(0)
	})
}

// A caller asks at once, because of another limiter, and leaves: no question is under way in the time until those who
// wait ask again, so nothing has gone unanswered then.
func TestTryAcquireAll_WaitersOutliveOneWhoLeftUnanswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nine := limitertest.Every(9, time.Hour)
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(1, time.Hour), nine, nine)
		limitertest.MustAcquire(t, s.Rival.RateLimiter(f.Limiters[0].Name()), 1)
		var all []*limitertest.Caller
		for range 3 {
			all = append(all, s.Go(func() (bool, error) {
				return f.Client.TryAcquireAll(t.Context(), 10*time.Minute, limitertest.Claims(1, f.Limiters[:2]...)...)
			}))
		}
		s.Until(time.Second)
		letGo := s.Hold(t, lua.AcquireAll, 1)
		leave := s.Leaver(t, func(ctx context.Context) (bool, error) {
			return f.Client.TryAcquireAll(ctx, forever, limitertest.Claims(1, f.Limiters[0], f.Limiters[2])...)
		})
		leave()
		letGo()
		s.Until(11 * time.Minute)
		limitertest.CheckOutcome(t, "false at 10m0s", all...)
	})
}

// A caller asks beside one who has been refused, and permits come back meanwhile: its grant lets the other ask.
func TestTryAcquireAll_GrantBesideARefusalWakesWhoWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nine := limitertest.Every(9, time.Hour)
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(6, time.Hour), nine, nine)
		held := limitertest.Reserve(t, f.Limiters[0], 5)
		waits := s.Go(func() (bool, error) {
			return f.Client.TryAcquireAll(t.Context(), forever, limitertest.Claims(5, f.Limiters[:2]...)...)
		})
		s.Until(time.Second)
		letGo := s.Hold(t, lua.AcquireAll, 1)
		beside := s.Go(func() (bool, error) {
			return f.Client.TryAcquireAll(t.Context(), forever, limitertest.Claims(1, f.Limiters[0], f.Limiters[2])...)
		})
		s.Until(1100 * ms)
		require.NoError(t, held.Settle(t.Context(), 0))
		s.Until(1200 * ms)
		letGo()
		s.Until(5 * time.Second)
		limitertest.CheckOutcome(t, "true at 1.2s", beside, waits)
	})
}

// The next in line is refused after its time: those behind it have not been asked for, but the server has answered.
func TestTryAcquireAll_WaiterBehindALateRefusalIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(1, time.Hour), limitertest.Every(9, time.Hour))
		limitertest.MustAcquire(t, s.Rival.RateLimiter(f.Limiters[0].Name()), 1)
		first := s.TryAll(t.Context(), f, 1, 10*time.Second)
		s.Until(time.Millisecond)
		second := s.TryAll(t.Context(), f, 1, 10*time.Second)
		third := s.TryAll(t.Context(), f, 1, 12*time.Second)
		s.Until(9900 * ms)
		letGo := s.Hold(t, lua.AcquireAll, 1)
		s.Until(10005 * ms)
		letGo()
		s.Until(13 * time.Second)
		limitertest.CheckOutcome(t, "false at 10s", first)
		limitertest.CheckOutcome(t, "false at 10.005s", second)
		limitertest.CheckOutcome(t, "false at 12.001s", third)
	})
}

// The line never comes to a caller whose time is over before: the answer has a Decision for each claim all the same.
func TestReserveAll_AnswersForEachClaimThoughItsTurnDidNotCome(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		f := limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb), limitertest.Every(1, time.Minute), limitertest.Every(9, time.Minute))
		assert.True(t, f.Try(t, 1))
		var first sync.WaitGroup
		first.Go(func() {
			_, err := f.Client.ReserveAll(t.Context(), time.Second, limitertest.Claims(1, f.Limiters...)...)
			assert.NoError(t, err)
		})
		synctest.Wait()
		r, err := f.Client.ReserveAll(t.Context(), 10*ms, limitertest.Claims(1, f.Limiters...)...)
		require.NoError(t, err)
		assert.False(t, r.Granted)
		assert.Len(t, r.Decisions, 2)
		first.Wait()
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
		type reserved struct {
			*rratelimiter.Reservation
			at int
		}
		var held []reserved
		for at, l := range f.Limiters {
			for range rate / 2 {
				held = append(held, reserved{limitertest.Reserve(t, l, 2), at})
			}
		}
		draw.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
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
		settled := len(held) * 2 / 3
		for _, r := range held[:settled] {
			time.Sleep(time.Duration(draw.IntN(150)) * ms)
			go func() { assert.NoError(t, r.Settle(t.Context(), 0)) }()
		}
		time.Sleep(3 * time.Minute) // twice the longest until they ask again, and an attempt
		synctest.Wait()
		var free [3]int64
		for at, l := range f.Limiters {
			free[at] = limitertest.Available(t, l)
			inUse := int64(0)
			for _, r := range held[settled:] {
				if r.at == at {
					inUse += 2
				}
			}
			assert.Equal(t, rate-free[at], used[at].Load()+inUse, l.Name())
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
