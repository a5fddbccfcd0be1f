package concurrency_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// held is the hold of these tests, in limiters of 10 permits a minute.
const held = 20 * time.Second

func updates(interval time.Duration) between {
	return func(t *testing.T, l *rratelimiter.RateLimiter) {
		cfg := limitertest.ConfigOf(t, l)
		cfg.Interval = interval
		require.NoError(t, limitertest.Second(l.UpdateRate(t.Context(), cfg, keep)))
	}
}

func resets(t *testing.T, l *rratelimiter.RateLimiter) { require.NoError(t, l.Reset(t.Context())) }

func releases(permits int64) between {
	return func(t *testing.T, l *rratelimiter.RateLimiter) { require.NoError(t, l.Release(t.Context(), permits)) }
}

// holdCases are settlements of 6 permits, held, once the hold is over or the interval another.
var holdCases = map[string]settlement{
	"just in time": {between: steps{sleeps(held - time.Millisecond)}, free: free{0: 10, 1: 9, 6: 4, 9: 1},
		back: back{1: time.Minute, 6: time.Minute, 9: held - time.Millisecond + time.Minute}},
	"too late": {between: steps{sleeps(held)}, free: free{0: 10, 1: 9, 6: 4, 9: 1, 30: -20}, back: backAfter(held)},
	"too late, others took it": {between: steps{sleeps(held), othersTake(10)}, free: free{0: 0, 1: -1, 6: -6, 9: -9},
		back: backAfter(held + time.Millisecond)},
	"Release of some, late": {between: steps{releases(4), sleeps(held)}, free: free{0: 10, 1: 9, 6: 4}, back: backAfter(held)},
	// The hold is longer by as much.
	"a longer interval": {between: steps{updates(2 * time.Minute), sleeps(held + time.Minute - time.Millisecond)},
		free: free{0: 10, 1: 9, 6: 4}, back: back{1: 2 * time.Minute, 6: 2 * time.Minute}},
	"a shorter interval": {between: steps{updates(50 * time.Second), sleeps(held - 10*time.Second - time.Millisecond)},
		free: free{0: 10, 1: 9, 6: 4}, back: back{1: 50 * time.Second, 6: 50 * time.Second}},
	// It had run out.
	"a shorter interval, and back": {between: steps{updates(30 * time.Second), updates(time.Minute)},
		free: free{0: 10, 1: 9, 6: 4, 9: 1, 30: -20}, back: backAfter(0)},
	"a shorter interval by less than the hold, and back": {between: steps{updates(50 * time.Second), updates(time.Minute)},
		free: free{0: 10, 1: 9, 6: 4, 9: 1}, back: backAfter(0)},
}

// backAfter is what comes of a settlement so long after the grant, when the hold is over.
func backAfter(after time.Duration) back {
	return back{1: after + time.Minute, 6: after + time.Minute, 9: after + time.Minute}
}

// A holder reserves permits of a limiter, and returns what settles them.
type holder func(t *testing.T, c *rratelimiter.Client, l *rratelimiter.RateLimiter, permits int64, opts options) (settle func(int64) error)

type options = []rratelimiter.ReserveOption

var holders = map[string]holder{
	"alone": func(t *testing.T, _ *rratelimiter.Client, l *rratelimiter.RateLimiter, permits int64, opts options) func(int64) error {
		r := limitertest.Reserve(t, l, permits, opts...)
		return func(used int64) error { return r.Settle(t.Context(), used) }
	},
	"with others": func(t *testing.T, c *rratelimiter.Client, l *rratelimiter.RateLimiter, permits int64, opts options) func(int64) error {
		others := c.RateLimiter("{"+l.Name()+"}others", rratelimiter.WithDefault(rratelimiter.PerDay(3)))
		r := limitertest.Must(c.ReserveAll(t.Context(), 0, others.Claim(2), l.Claim(permits, opts...)))(t)
		require.True(t, r.Granted)
		return func(used int64) error {
			defer func() { assert.EqualValues(t, 2, limitertest.Available(t, others), "without a hold") }()
			return r.Settle(t.Context(), 1, used)
		}
	},
}

func TestHold_SettleChargesWhatWasUsed(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, holders, func(t *testing.T, reserve holder) {
		checkSettlements(t, settlements, reserve, rratelimiter.Hold(held))
		checkSettlements(t, holdCases, reserve, rratelimiter.Hold(held))
	})
}

// Migrate gives members of older layouts other ids: such a reservation is held to its end, and what was used charged beside it.
func TestHold_SettleChargesWhatWasUsedAfterMigrate(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"3.15.5", "3.16.8", "3.20.1"} {
		for used, free := range map[int64]int64{0: 4, 1: 3, 6: -2, 9: -5} {
			t.Run(fmt.Sprint(version, ", used ", used), func(t *testing.T) {
				redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
					l := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version)).RateLimiter("limiter")
					limitertest.MustTrySetRate(t, l, limitertest.Every(10, time.Minute))
					stored := books{rdb, redisson.KeysOf("limiter", "id")}
					r := limitertest.Reserve(t, l, 6, rratelimiter.Hold(held))
					require.NoError(t, limitertest.Second(limitertest.NewClient(t, rdb).RateLimiter("limiter").Migrate(t.Context())))
					require.NoError(t, r.Settle(t.Context(), used))
					got, _ := stored.free(t, "settled")
					assert.Equal(t, free, got)
					time.Sleep(held)
					assert.Equal(t, 10-used, limitertest.Available(t, l), "the hold is over")
					time.Sleep(time.Minute)
					assert.EqualValues(t, 10, limitertest.Available(t, l))
				})
			})
		}
	}
}

// A reservation that is not settled comes back when its hold is over, and not before; the figures say when.
func TestHold_ComesBackUnsettled(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, limitertest.MembersOf, func(t *testing.T, rdb redistest.Client, version string) {
		client := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version))
		cfg := rratelimiter.Config{Rate: 10, Interval: time.Minute, KeepAlive: time.Minute}
		l, keyed, start := client.RateLimiter("limiter", rratelimiter.WithDefault(cfg)), client.Keyed("key:", cfg), time.Now()
		of := limitertest.Must(keyed.Reserve(t.Context(), "ann", 8, 0, rratelimiter.Hold(held)))(t)
		for _, r := range []*rratelimiter.Reservation{limitertest.Reserve(t, l, 8, nil, rratelimiter.Hold(held)), of} {
			assert.Equal(t, limit.Decision{Granted: true, Limit: 10, Remaining: 2, ResetAfter: held}, r.Decision)
		}
		assert.Equal(t, time.Minute, limitertest.Reserve(t, l, 1).ResetAfter)
		assert.Equal(t, held, limitertest.Take(t, l, 2).RetryAfter)
		time.Sleep(held - time.Millisecond)
		assert.EqualValues(t, 1, limitertest.Available(t, l))
		assert.EqualValues(t, 2, limitertest.Available(t, keyed.Limiter("ann")))
		require.NoError(t, limitertest.Second(l.TryAcquire(t.Context(), 9, time.Hour)))
		assert.Equal(t, held, time.Since(start))
		assert.EqualValues(t, 2, limitertest.Take(t, keyed.Limiter("ann"), 8).Remaining)
	})
}

// The server's clock decides whether a hold is over.
func TestHold_ServerClockDecides(t *testing.T) {
	t.Parallel()
	all := limitertest.Rows(-time.Second, held-time.Millisecond, held, time.Hour)
	limitertest.Stepping(t, all, func(t *testing.T, rdb redistest.Client, step func(time.Duration), ahead time.Duration) {
		for renewals := range 3 {
			l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Minute))
			r := limitertest.Reserve(t, l, 6, rratelimiter.Hold(held))
			for range renewals {
				require.NoError(t, r.Renew(t.Context()))
			}
			step(ahead)
			require.NoError(t, r.Settle(t.Context(), 2))
			assert.EqualValues(t, 8, limitertest.Available(t, l), "after %d renewals", renewals)
		}
	})
}

// lasting is how long a reservation counts that has no hold, or that of these tests.
var lasting = map[string]lasts{
	"an interval": {nil, time.Minute}, "held": {options{rratelimiter.Hold(held)}, held},
}

type lasts struct {
	opts  options
	lasts time.Duration
}

// A reservation that is renewed in time stays for as long as that goes on, and counts from the last time on.
func TestRenew_CountsFromNowOn(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, lasting, func(t *testing.T, rdb redistest.Client, c lasts) {
		client := limitertest.NewClient(t, rdb)
		l := client.Keyed("", rratelimiter.PerMinute(10)).Limiter("jobs")
		r := limitertest.Reserve(t, l, 6, c.opts...)
		for range 5 {
			time.Sleep(c.lasts - time.Millisecond)
			require.NoError(t, r.Renew(t.Context()))
			require.NoError(t, r.Renew(t.Context()), "again")
			assert.EqualValues(t, 4, limitertest.Available(t, l))
		}
		time.Sleep(c.lasts - time.Millisecond)
		assert.EqualValues(t, 4, limitertest.Available(t, l))
		time.Sleep(time.Millisecond)
		require.ErrorIs(t, r.Renew(t.Context()), rratelimiter.ErrSettled, "it has come back")
		limitertest.MustAcquire(t, l, 10)
		require.ErrorIs(t, r.Renew(t.Context()), rratelimiter.ErrSettled)
		require.NoError(t, r.Cancel(t.Context()))
		assert.Zero(t, limitertest.Available(t, l))
	})
}

// What was used counts from the last Renew on, also if others have released a part since.
func TestRenew_SettledAfterwards(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, lasting, func(t *testing.T, rdb redistest.Client, c lasts) {
		for used, free := range map[int64]int64{0: 10, 2: 8, 6: 8, 8: 6} {
			l := limitertest.NewClient(t, rdb).RateLimiter(fmt.Sprint("used ", used), rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
			r := limitertest.Reserve(t, l, 6, c.opts...)
			for range 4 {
				time.Sleep(c.lasts - time.Second)
				require.NoError(t, r.Renew(t.Context()))
			}
			time.Sleep(c.lasts / 2)
			require.NoError(t, l.Release(t.Context(), 4))
			require.NoError(t, r.Settle(t.Context(), used))
			got, _ := books{rdb, limitertest.KeysOf(l)}.free(t, "settled")
			assert.Equal(t, free, got, used)
			time.Sleep(time.Minute - c.lasts/2 - time.Millisecond)
			assert.Equal(t, free, limitertest.Available(t, l), used)
			require.ErrorIs(t, r.Renew(t.Context()), rratelimiter.ErrSettled)
		}
	})
}

// Renew fails if others may have the permits.
func TestRenew_OfWhatIsNotReserved(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, map[string]between{
		"Release of some": releases(1), "Release of all": releases(6), "Reset": resets, "Delete": deletes(false), "Delete, and made again": deletes(true),
		"another rate": setsRate(20, 0), "an interval": sleeps(time.Minute),
	}, func(t *testing.T, rdb redistest.Client, happens between) {
		l := limitertest.NewLimiterOf(t, limitertest.NewClient(t, rdb), "jobs", rratelimiter.PerMinute(10))
		r := limitertest.Reserve(t, l, 6)
		happens(t, l)
		require.ErrorIs(t, r.Renew(t.Context()), rratelimiter.ErrSettled)
	})
}

// reservationText reserves 100 permits, and returns what a program would keep of that.
func reservationText(t *testing.T, of engine.Behind, hold time.Duration) ([]byte, error) {
	t.Helper()
	claims := []engine.Claim{{Limiter: of.Limiter, Permits: 100, Hold: hold}}
	a := limitertest.Must(of.Engine.AcquireAll(t.Context(), claims, decide.Ask{Figures: true, Reserve: true}))(t)
	return a.Each[0].Reserved.AppendBinary(nil)
}

// Whichever programs settle a reservation, and however often, it is charged once.
func TestSettlerOf_ChargesOnce(t *testing.T) {
	t.Parallel()
	type row struct {
		after         time.Duration
		first, second int64
		want          int64 // free after the first
	}
	limitertest.Virtual(t, map[string]row{
		"Less":           {time.Second, 37, 37, 163},
		"LessThenMore":   {time.Second, 37, 50, 163},
		"More":           {time.Second, 150, 150, 50},
		"BeyondTheRate":  {time.Second, 300, 300, -100},
		"AfterHold":      {2 * time.Minute, 30, 30, 170},
		"AfterHoldOther": {2 * time.Minute, 30, 40, 170},
		"AfterTheHour":   {61 * time.Minute, 30, 30, 170},
	}, func(t *testing.T, rdb redistest.Client, tc row) {
		program := func() engine.Behind {
			b, _ := door.Behind[engine.Behind](limitertest.ByDefault(limitertest.NewClient(t, rdb), "shared", rratelimiter.PerHour(200)))
			return b
		}
		first := program()
		text := limitertest.Must(reservationText(t, first, time.Minute))(t)
		for _, wrong := range [][]byte{nil, {1}, text[:len(text)-1], append(slices.Clip(text), 0)} {
			require.ErrorIs(t, limitertest.Second(first.Engine.SettlerOf(first.Limiter, wrong)), rratelimiter.ErrInvalidConfig)
		}
		free := func() int64 { // below 0 if more are in use
			all := limitertest.Available(t, limitertest.NewClient(t, rdb).RateLimiter("shared"))
			if value, err := rdb.Get(t.Context(), "{shared}:value").Int64(); err == nil {
				return value
			}
			return all
		}
		time.Sleep(tc.after)
		for i, used := range []int64{tc.first, tc.second, tc.second} {
			p := program()
			settle := limitertest.Must(p.Engine.SettlerOf(p.Limiter, text))(t)
			require.NoError(t, settle(t.Context(), used, func(err error) { assert.NoError(t, err) }))
			assert.Equal(t, tc.want, free(), i)
			time.Sleep(time.Second)
		}
		time.Sleep(time.Hour + time.Second)
		assert.EqualValues(t, 200, free())
		require.NoError(t, first.Engine.Charge(t.Context(), first.Limiter, 205, func(err error) { assert.NoError(t, err) }))
		assert.EqualValues(t, -5, free(), "charged without a reservation")
		time.Sleep(time.Hour + time.Second)
		require.ErrorIs(t, limitertest.Second(reservationText(t, first, 0)), rratelimiter.ErrUnsupported, "not held: no server's date is known")
	})
}

// What settles a reservation stays apart from other members, by which a later program finds it.
func TestSettlerOf_ChargesOnceThoughMembersAreMerged(t *testing.T) {
	t.Parallel()
	type row struct {
		hold, after time.Duration
		used        int64
	}
	limitertest.Virtual(t, map[string]row{
		"held": {time.Minute, time.Second, 150}, "later": {time.Minute, 61 * time.Minute, 150}, "held for an interval": {time.Hour, time.Second, 100},
	}, func(t *testing.T, rdb redistest.Client, row row) {
		l := limitertest.ByDefault(limitertest.NewClient(t, rdb), "shared", rratelimiter.PerHour(100_000))
		b, _ := door.Behind[engine.Behind](l)
		reserve := func() (settle func()) {
			text := limitertest.Must(reservationText(t, b, row.hold))(t)
			return func() {
				require.NoError(t, limitertest.Must(b.Engine.SettlerOf(b.Limiter, text))(t)(t.Context(), row.used, func(err error) { assert.NoError(t, err) }))
			}
		}
		takes := func(n int) {
			for range n {
				limitertest.MustAcquire(t, l, 1)
				time.Sleep(50 * ms)
			}
		}
		first := reserve()
		time.Sleep(row.after)
		takes(100) // the first of an interval are never merged
		first()
		for range 50 { // more than are listed as answered
			reserve()()
		}
		takes(500)
		require.Less(t, rdb.ZCard(t.Context(), "{shared}:permits").Val(), int64(300), "members are merged")
		first()
		time.Sleep(time.Second)
		assert.Equal(t, 100_000-600-51*row.used, limitertest.Available(t, l))
		assert.Equal(t, 600+51*row.used, limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits))
	})
}

// A caller that has gone gives back what is left of its reservation, though others were granted permits since.
func TestHold_OfCallerThatHasGone(t *testing.T) {
	t.Parallel()
	hold := rratelimiter.Hold(held)
	for script, reserve := range map[*lua.Script]func(ctx context.Context, client *rratelimiter.Client, l *rratelimiter.RateLimiter) error{
		lua.Acquire: func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return limitertest.Second(l.Reserve(ctx, 6, 0, hold))
		},
		lua.AcquireAll: func(ctx context.Context, client *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			others := client.RateLimiter("{"+l.Name()+"}others", rratelimiter.WithDefault(rratelimiter.PerDay(3)))
			return limitertest.Second(client.ReserveAll(ctx, 0, others.Claim(2), l.Claim(6, hold)))
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := limitertest.NewHeldScene(t, limitertest.Every(1000, time.Minute))
			letGo := s.Hold(t, script, 1)
			ctx, cancel := context.WithCancel(t.Context())
			gone := s.Go(func() (bool, error) { return false, reserve(ctx, s.Client, s.RateLimiter) })
			synctest.Wait()
			require.NoError(t, s.Other.Release(t.Context(), 2))
			for range 300 {
				limitertest.MustAcquire(t, s.Other, 1)
			}
			s.CheckInUse(t, 1000, 304)
			cancel()
			synctest.Wait()
			letGo()
			gone.RequireEnd(t, context.Canceled, 0)
			s.CheckInUse(t, 1000, 300)
		})
	}
}
