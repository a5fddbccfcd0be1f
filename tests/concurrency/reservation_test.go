package concurrency_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// books read what Redis holds of a limiter.
type books struct {
	rdb  redistest.Client
	keys redisson.Keys
}

// free returns the stored value, which is below 0 in debt, and checks that it and the
// permits in use come to the rate. ok is false if there is no limiter.
func (l books) free(t testing.TB, when string) (free int64, ok bool) {
	t.Helper()
	fields := l.rdb.HGetAll(t.Context(), l.keys.Config).Val()
	value, permits := l.keys.Value, l.keys.Permits
	if fields["type"] == "1" {
		value, permits = l.keys.ClientValue, l.keys.ClientPermits
	}
	if len(fields) == 0 {
		assert.Empty(t, limitertest.LimiterKeys(t, l.rdb, l.keys.Config), when)
		return 0, false
	}
	inUse := limitertest.InUse(t, l.rdb, permits)
	free, stored := limitertest.StoredValue(t, l.rdb, value)
	rate := limitertest.Must(l.rdb.HGet(t.Context(), l.keys.Config, "rate").Int64())(t)
	if !stored {
		free = rate
	}
	assert.Equal(t, rate, free+inUse, "%s: value and permits in use", when)
	return free, true
}

// between is what happens between Reserve and Settle.
type between func(t *testing.T, l *rratelimiter.RateLimiter)

// A settlement is what may happen to a limiter of 10 permits a minute between Reserve and Settle.
type settlement struct {
	taken    int64 // by others before
	reserved int64 // 6 if it is not said
	between  steps
	free     free
	back     back
	gone     bool // there is no limiter under the name
}

type (
	steps = []between
	free  = map[int64]int64         // by the permits used, when they are settled
	back  = map[int64]time.Duration // by the permits used, from Reserve until all is free
)

// settlements are the same with a hold, if it is not over.
var settlements = map[string]settlement{
	"at once": {free: free{0: 10, 1: 9, 2: 8, 6: 4, 7: 3, 9: 1, 10: 0, 30: -20},
		back: back{1: time.Minute, 6: time.Minute, 7: time.Minute, 10: time.Minute}},
	"the rest in use": {taken: 4, free: free{0: 6, 2: 4, 6: 0, 7: -1, 16: -10}, back: back{7: time.Minute, 16: time.Minute}},
	"more than the rate": {reserved: 1, free: free{25: -15, rratelimiter.MaxPermits: 10 - rratelimiter.MaxPermits},
		back: back{25: time.Minute, rratelimiter.MaxPermits: time.Minute}},
	"others' grants": {between: steps{othersTake(3)}, free: free{0: 7, 2: 5, 6: 1, 8: -1}, back: back{8: time.Minute + time.Millisecond}},
	"Release of some": {between: steps{releases(4)}, free: free{0: 10, 1: 9, 2: 8, 3: 8, 6: 8, 8: 6},
		back: back{1: time.Minute, 6: time.Minute}},
	"Release of all":           {between: steps{releases(10)}, free: free{0: 10, 3: 10, 8: 8}},
	"Reset":                    {between: steps{resets}, free: free{0: 10, 3: 10, 8: 8}},
	"another rate":             {between: steps{setsRate(20, 0)}, free: free{0: 20, 3: 20, 8: 18}},
	"a higher rate, KeepState": {between: steps{setsRate(20, 0, keep)}, free: free{0: 20, 3: 17, 8: 12}},
	"a lower rate, KeepState":  {between: steps{setsRate(4, 0, keep)}, free: free{0: 4, 3: 1, 6: -2, 8: -4}},
	"a KeepAlive time":         {between: steps{setsRate(10, time.Hour, keep)}, free: free{0: 10, 3: 7, 8: 2}},
	"Delete":                   {between: steps{deletes(false)}, gone: true, free: free{0: 0, 3: 0, 6: 0, 8: 0}},
	"Delete, and made again":   {between: steps{deletes(true)}, free: free{0: 10, 3: 10, 8: 8}},
	"Rename":                   {between: steps{renames}, gone: true, free: free{0: 0, 3: 0, 6: 0, 8: 0}},
}

// intervals are settlements long after the grant, without a hold.
var intervals = map[string]settlement{
	"half of one": {taken: 1, between: steps{sleeps(30 * time.Second)}, free: free{0: 9, 2: 7, 6: 3, 12: -3}, back: back{12: 90 * time.Second}},
	"one": {taken: 1, between: steps{sleeps(time.Minute)}, free: free{0: 10, 2: 10, 7: 9, 26: -10},
		back: back{7: 2 * time.Minute, 26: 2 * time.Minute}},
	"two days": {between: steps{sleeps(48 * time.Hour)}, free: free{0: 10, 8: 8}},
}

func renames(t *testing.T, l *rratelimiter.RateLimiter) {
	require.NoError(t, l.Rename(t.Context(), "another"))
}

var keep = rratelimiter.KeepState()

func sleeps(d time.Duration) between {
	return func(*testing.T, *rratelimiter.RateLimiter) { time.Sleep(d) }
}

func othersTake(permits int64) between {
	return func(t *testing.T, l *rratelimiter.RateLimiter) {
		time.Sleep(time.Millisecond)
		limitertest.MustAcquire(t, l, permits)
	}
}

func setsRate(rate int64, keepAlive time.Duration, opts ...rratelimiter.RateOption) between {
	return func(t *testing.T, l *rratelimiter.RateLimiter) {
		cfg := limitertest.ConfigOf(t, l)
		cfg.Rate, cfg.KeepAlive = rate, keepAlive
		require.NoError(t, l.SetRate(t.Context(), cfg, opts...))
	}
}

func deletes(anew bool) between {
	return func(t *testing.T, l *rratelimiter.RateLimiter) {
		cfg := limitertest.ConfigOf(t, l)
		require.NoError(t, limitertest.Second(l.Delete(t.Context())))
		if anew {
			limitertest.MustTrySetRate(t, l, cfg)
		}
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	checkSettlements(t, settlements, holders["alone"])
	checkSettlements(t, intervals, holders["alone"])
}

// checkSettlements checks what is free by permits used, after each settlement of what reserve has reserved.
func checkSettlements(t *testing.T, all map[string]settlement, reserve holder, opts ...rratelimiter.ReserveOption) {
	t.Helper()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		for name, c := range all {
			for used, free := range c.free {
				t.Run(fmt.Sprint(name, ", used ", used), func(t *testing.T) {
					t.Parallel()
					redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
						client := limitertest.NewClient(t, rdb, rratelimiter.WithClientID("id"))
						l := limitertest.NewLimiterOf(t, client, "limiter", rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Minute})
						stored, start := books{rdb, redisson.KeysOf("limiter", "id")}, time.Now()
						if c.taken > 0 {
							limitertest.MustAcquire(t, l, c.taken)
						}
						settle := reserve(t, client, l, cmp.Or(c.reserved, 6), opts)
						stored.free(t, "reserved")
						for _, happens := range c.between {
							happens(t, l)
							stored.free(t, "before it is settled")
						}
						require.NoError(t, settle(used))
						got, there := stored.free(t, "settled")
						assert.Equal(t, free, got)
						assert.Equal(t, !c.gone, there)
						if back := c.back[used]; back > 0 {
							rate := limitertest.ConfigOf(t, l).Rate
							time.Sleep(time.Until(start.Add(back - time.Millisecond)))
							assert.Less(t, limitertest.Available(t, l), rate, "a millisecond before all is back")
							stored.free(t, "then")
							time.Sleep(time.Millisecond)
							assert.Equal(t, rate, limitertest.Available(t, l), "all is back")
						}
					})
				})
			}
		}
	})
}

var reservationTests = limitertest.Tests[redistest.Client]{
	// What exceeds a reservation is charged though the limiter has gone meanwhile, as it does
	// after an interval without calls, if the handle brings the rate.
	"a settlement makes a limiter by default": func(t *testing.T, rdb redistest.Client) {
		client, cfg := limitertest.NewClient(t, rdb), rratelimiter.Config{Rate: 10, Interval: time.Minute, KeepAlive: time.Minute}
		keyed, rated := client.Keyed("user:", cfg), client.RateLimiter("rated", rratelimiter.WithDefault(cfg))
		for name, ask := range map[string]func() (*rratelimiter.Reservation, error){
			"user:ann": func() (*rratelimiter.Reservation, error) { return keyed.Reserve(t.Context(), "ann", 5, 0) },
			"rated":    func() (*rratelimiter.Reservation, error) { return rated.Reserve(t.Context(), 5, 0) },
		} {
			for used, want := range map[int64]int64{4: 0, 13: 2} {
				r := limitertest.Must(ask())(t)
				require.True(t, r.Granted)
				time.Sleep(time.Minute + time.Second)
				require.NoError(t, r.Settle(t.Context(), used))
				free, there := books{rdb, redisson.KeysOf(name, "")}.free(t, "settled")
				assert.Equal(t, want, free)
				assert.Equal(t, used == 13, there)
				time.Sleep(2 * time.Minute)
			}
		}
	},
	"renewals of several limiters": func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		a := client.RateLimiter("{shop}a", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
		b := client.RateLimiter("{shop}b", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
		r := limitertest.Must(client.ReserveAll(t.Context(), 0, a.Claim(3), b.Claim(4, rratelimiter.Hold(held))))(t)
		for range 6 {
			time.Sleep(held - time.Second)
			require.NoError(t, r.Renew(t.Context()))
		}
		assert.EqualValues(t, 7, limitertest.Available(t, a))
		assert.EqualValues(t, 6, limitertest.Available(t, b))
		time.Sleep(held)
		err := r.Renew(t.Context())
		require.ErrorIs(t, err, rratelimiter.ErrSettled)
		require.ErrorContains(t, err, "{shop}b")
		assert.NotContains(t, err.Error(), "{shop}a")
		require.NoError(t, r.Cancel(t.Context()))
		assert.EqualValues(t, 10, limitertest.Available(t, a))
	},
}

func TestReservations_InVirtualTime(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, reservationTests, func(t *testing.T, rdb redistest.Client, test func(t *testing.T, rdb redistest.Client)) { test(t, rdb) })
}

func TestReservation_IsSettledOnce(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		recorder := &limitertest.Recorder{}
		client := limitertest.NewClient(t, rdb, rratelimiter.WithObserver(recorder))
		l := limitertest.NewLimiterOf(t, client, redistest.Name(t), limitertest.Every(100, time.Hour))
		r := limitertest.Reserve(t, l, 10)
		sent := limitertest.CountCommands(rdb)
		for _, bad := range []int64{-1, rratelimiter.MaxPermits + 1} {
			require.ErrorIs(t, r.Settle(t.Context(), bad), rratelimiter.ErrInvalidPermits)
		}
		assert.Zero(t, sent.Total())
		var settled atomic.Int64
		limitertest.Together(20, func(i int) {
			if err := r.Settle(t.Context(), int64(20+i)); err == nil {
				settled.Add(int64(20 + i))
			} else {
				assert.ErrorIs(t, err, rratelimiter.ErrSettled)
			}
		})
		require.NoError(t, r.Cancel(t.Context()))
		require.ErrorIs(t, r.Settle(t.Context(), settled.Load()), rratelimiter.ErrSettled)
		assert.Equal(t, 100-settled.Load(), limitertest.Available(t, l))
		other := limitertest.Reserve(t, l, 1)
		defer func() { assert.NoError(t, other.Cancel(t.Context())) }()
		require.NoError(t, other.Settle(t.Context(), 1))
		require.ErrorContains(t, other.Settle(t.Context(), 2), "with 1 permit, before")
		cancelled := limitertest.Reserve(t, l, 10)
		require.NoError(t, cancelled.Cancel(t.Context()))
		require.NoError(t, cancelled.Cancel(t.Context()))
		require.ErrorIs(t, cancelled.Settle(t.Context(), 10), rratelimiter.ErrSettled)
		assert.Equal(t, 99-settled.Load(), limitertest.Available(t, l))
		require.Eventually(t, func() bool { return len(recorder.Settlements()) == 3 }, time.Minute, time.Millisecond)
		assert.Equal(t, []limit.Settled{
			{Limiter: l.Name(), Reserved: 10, Actual: settled.Load(), Charged: true},
			{Limiter: l.Name(), Reserved: 1, Actual: 1, Charged: true},
			{Limiter: l.Name(), Reserved: 10, Actual: 0, Charged: true},
		}, recorder.Settlements())
		decided := recorder.Decisions()
		assert.Len(t, decided, 3)
		for _, d := range decided {
			assert.Equal(t, "Reserve", d.Call)
		}
		last := limitertest.Reserve(t, l, 1)
		require.NoError(t, client.Close(t.Context()))
		require.ErrorIs(t, last.Settle(t.Context(), 0), rratelimiter.ErrClosed)
		require.ErrorIs(t, last.Settle(t.Context(), 1), rratelimiter.ErrSettled, "the first had another number")
		require.ErrorIs(t, last.Cancel(t.Context()), rratelimiter.ErrClosed, "which repeats it")
	})
}

var reservationScenes = map[string]limitertest.SceneTest[*limitertest.Scene]{
	// Waiting callers get what a settlement frees at once, and so do those who ask for more than debts leave once these are paid.
	"a settlement wakes waiters": {Cfg: limitertest.Every(10, time.Minute), Run: func(t *testing.T, s *limitertest.Scene) {
		first, second := limitertest.Reserve(t, s.RateLimiter, 8), limitertest.Reserve(t, s.RateLimiter, 2)
		waiting := s.Go(func() (bool, error) {
			r, err := s.Reserve(t.Context(), 5, time.Hour)
			return err == nil && r.Granted && r.Limit == 10, err
		})
		s.Until(10 * time.Second)
		require.NoError(t, second.Settle(t.Context(), 1))
		require.Equal(t, "waits", waiting.Outcome())
		s.Until(20 * time.Second)
		require.NoError(t, first.Settle(t.Context(), 2))
		synctest.Wait()
		assert.Equal(t, "true at 20s", waiting.Outcome())

		third := limitertest.Reserve(t, s.RateLimiter, 1)
		require.NoError(t, third.Settle(t.Context(), 15)) // 10 - 1 - 2 - 5 - 15
		late := s.StartTryAcquire(t.Context(), 1, time.Hour)
		s.Until(2 * time.Minute)
		assert.Equal(t, "true at 1m20s", late.Outcome())
		vain := limitertest.Must(s.Reserve(t.Context(), 10, 0))(t)
		assert.False(t, vain.Granted)
		sent := s.Sent.Total()
		require.NoError(t, vain.Renew(t.Context()))
		require.NoError(t, vain.Settle(t.Context(), 3))
		assert.Equal(t, sent, s.Sent.Total())
	}},
	"those who wait in line have each their hold": {Cfg: limitertest.Every(10, time.Minute), Run: func(t *testing.T, s *limitertest.Scene) {
		limitertest.MustAcquire(t, s.RateLimiter, 10)
		for _, hold := range []time.Duration{held, 2 * held} {
			s.Go(func() (bool, error) {
				return true, limitertest.Second(s.Reserve(t.Context(), 3, time.Hour, rratelimiter.Hold(hold)))
			})
			synctest.Wait()
		}
		for i, want := range []int64{4, 7, 10} {
			s.Until(time.Minute + time.Duration(i)*held)
			assert.Equal(t, want, limitertest.Available(t, s.RateLimiter))
		}
	}},
	"a hold that is too short": {Cfg: limitertest.Every(10, time.Minute), Run: func(t *testing.T, s *limitertest.Scene) {
		sent := s.Sent.Total()
		for _, d := range []time.Duration{-time.Hour, 0, 1, time.Millisecond - 1} {
			_, err := s.Reserve(t.Context(), 1, 0, rratelimiter.Hold(d))
			require.ErrorIs(t, err, rratelimiter.ErrInvalidConfig)
			assert.ErrorContains(t, err, `Reserve`)
		}
		assert.Equal(t, sent, s.Sent.Total())
		limitertest.Reserve(t, s.RateLimiter, 10, rratelimiter.Hold(time.Millisecond+1))
		time.Sleep(2*time.Millisecond - 1)
		assert.Zero(t, limitertest.Available(t, s.RateLimiter), "it is rounded up")
		time.Sleep(time.Nanosecond)
		assert.EqualValues(t, 10, limitertest.Available(t, s.RateLimiter))
	}},
	// One that is not shorter than the interval changes nothing.
	"a hold that is too long": {Cfg: limitertest.Every(10, time.Minute), Run: func(t *testing.T, s *limitertest.Scene) {
		for _, d := range []time.Duration{time.Minute, time.Hour, 1<<63 - 1} {
			r := limitertest.Reserve(t, s.RateLimiter, 1, rratelimiter.Hold(d))
			assert.Equal(t, time.Minute, r.ResetAfter)
			sent := s.Sent.Total()
			require.NoError(t, r.Settle(t.Context(), 1))
			assert.Equal(t, sent, s.Sent.Total(), "Settle of what was reserved asks Redis nothing")
		}
	}},
}

func TestReservations(t *testing.T) {
	t.Parallel()
	limitertest.OnScenes(t, reservationScenes, func(t *testing.T, cfg rratelimiter.Config) *limitertest.Scene {
		return limitertest.NewScene(t, cfg)
	})
}

// A reservation takes no permits of a lease, and none ahead.
func TestReserve_DoesNotUseLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(10_000, time.Hour), limitertest.Ahead(time.Minute))
		r := limitertest.Reserve(t, s.RateLimiter, 5)
		assert.EqualValues(t, 9_995, limitertest.Available(t, s.Other))
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		before := limitertest.Available(t, s.Other)
		assert.Less(t, before, int64(9_993), "a lease is there")
		more := limitertest.Reserve(t, s.RateLimiter, 5)
		assert.Equal(t, before-5, limitertest.Available(t, s.Other))
		require.NoError(t, r.Settle(t.Context(), 1))
		require.NoError(t, more.Settle(t.Context(), 7))
		assert.Equal(t, before-3, limitertest.Available(t, s.Other))
		for sent := s.Sent.Total(); s.Sent.Total() == sent; {
			limitertest.MustAcquire(t, s.RateLimiter, 1) // until another lease is there
		}
		last := limitertest.Reserve(t, s.RateLimiter, 1)
		d := limitertest.Take(t, s.RateLimiter, 1)
		require.NoError(t, last.Settle(t.Context(), 3))
		sent := s.Sent.Total()
		assert.Equal(t, d.Remaining-3, limitertest.Take(t, s.RateLimiter, 1).Remaining, "less what was charged")
		assert.Equal(t, sent, s.Sent.Total(), "from memory")
	})
}

// A reservation that was not charged in Redis is not settled there.
func TestReservation_UnchargedIsNotSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		recorder := &limitertest.Recorder{}
		client := limitertest.NewClient(t, rdb, rratelimiter.WithObserver(recorder))
		l := limitertest.NewLimiterOf(t, client, "limiter", limitertest.Every(10, time.Hour))
		shadow := client.RateLimiter("limiter", rratelimiter.WithShadow())
		charged := limitertest.Reserve(t, shadow, 8)
		let := limitertest.Reserve(t, shadow, 8, rratelimiter.Hold(time.Minute))
		require.NoError(t, let.Renew(t.Context()))
		require.NoError(t, let.Settle(t.Context(), 9))
		require.ErrorIs(t, let.Settle(t.Context(), 9), rratelimiter.ErrSettled)
		require.NoError(t, limitertest.Reserve(t, shadow, 8).Cancel(t.Context()))
		assert.EqualValues(t, 2, limitertest.Available(t, l))
		require.NoError(t, charged.Settle(t.Context(), 3))
		assert.EqualValues(t, 7, limitertest.Available(t, l))
		failing := client.RateLimiter("limiter",
			rratelimiter.WithFailure(limit.FailLocal(1)), rratelimiter.WithDefault(limitertest.Every(10, time.Hour)))
		m.SetError("LOADING")
		open := limitertest.Reserve(t, failing, 10)
		require.NoError(t, open.Cancel(t.Context()))
		again := limitertest.Reserve(t, failing, 10, rratelimiter.Hold(time.Minute))
		m.SetError("")
		require.NoError(t, again.Renew(t.Context()))
		require.NoError(t, again.Settle(t.Context(), 4))
		assert.EqualValues(t, 7, limitertest.Available(t, l))
		synctest.Wait()
		var told []bool
		for _, s := range recorder.Settlements() {
			told = append(told, s.Charged)
		}
		assert.Equal(t, []bool{false, false, true, false, false}, told)
	})
}

// A Release might take the charge of a Settle that must be repeated, so the two of a Client wait for each other, however long one takes.
func TestSettleAndRelease_WaitForEachOther(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]*lua.Script{"Settle waits": lua.Release, "Release waits": lua.SettleReservation}, func(t *testing.T, held *lua.Script) {
		s := limitertest.NewHeldScene(t, limitertest.Every(10, time.Hour))
		r := limitertest.Reserve(t, s.RateLimiter, 4)
		calls := []func() (bool, error){
			func() (bool, error) { return true, s.Release(t.Context(), 1) },
			func() (bool, error) { return true, r.Settle(t.Context(), 9) },
		}
		if held == lua.SettleReservation {
			slices.Reverse(calls)
		}
		letGo := s.Hold(t, held, 1)
		first := s.Go(calls[0])
		synctest.Wait()
		sent := s.Sent.Total()
		second := s.Go(calls[1])
		synctest.Wait()
		assert.Equal(t, sent, s.Sent.Total())
		letGo()
		limitertest.CheckOutcome(t, "true at 0s", first, second)
		s.CheckInUse(t, 10, 8)
	})
}

// A settlement whose caller has gone counts from the call on: Close waits for it, and a Release comes after it.
func TestSettle_OfGoneCallerComesBeforeWhatFollows(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, map[string]int64{"Close": 0, "Release": 6}, func(t *testing.T, rdb redistest.Client, released int64) {
		c := limitertest.NewClient(t, rdb)
		l := limitertest.NewLimiterOf(t, c, "limiter", limitertest.Every(100, time.Minute))
		limitertest.MustAcquire(t, l, 10)
		r := limitertest.Reserve(t, l, 6)
		require.ErrorIs(t, r.Settle(limitertest.EndedContext(t), 0), context.Canceled)
		if released > 0 {
			assert.NoError(t, l.Release(t.Context(), released))
		} else {
			assert.NoError(t, c.Close(t.Context()))
		}
		synctest.Wait()
		assert.Equal(t, 90+released, limitertest.Available(t, limitertest.NewClient(t, rdb).RateLimiter("limiter")))
	})
}
