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
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/outage"
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
	"after an interval":      {between: steps{sleeps(time.Hour)}, free: free{0: 10, 1: 9, 6: 4, 9: 1}, back: backAfter(time.Hour)},
	"Release of some, late":  {between: steps{releases(4), sleeps(held)}, free: free{0: 10, 1: 9, 6: 4}, back: backAfter(held)},
	"a KeepAlive time, late": {between: steps{setsRate(10, time.Hour, keep), sleeps(held)}, free: free{0: 10, 1: 9, 6: 4}, back: backAfter(held)},
	// The hold is longer by as much.
	"a longer interval": {between: steps{updates(2 * time.Minute), sleeps(held + time.Minute - time.Millisecond)},
		free: free{0: 10, 1: 9, 6: 4}, back: back{1: 2 * time.Minute, 6: 2 * time.Minute}},
	"a longer interval, late": {between: steps{updates(2 * time.Minute), sleeps(held + time.Minute)},
		free: free{0: 10, 1: 9, 6: 4}, back: back{6: held + 3*time.Minute}},
	"a shorter interval": {between: steps{updates(50 * time.Second), sleeps(held - 10*time.Second - time.Millisecond)},
		free: free{0: 10, 1: 9, 6: 4}, back: back{1: 50 * time.Second, 6: 50 * time.Second}},
	// It had run out.
	"a shorter interval, and back": {between: steps{updates(30 * time.Second), updates(time.Minute)},
		free: free{0: 10, 1: 9, 6: 4, 9: 1, 30: -20}, back: backAfter(0)},
	"a shorter interval by less than the hold, and back": {between: steps{updates(50 * time.Second), updates(time.Minute)},
		free: free{0: 10, 1: 9, 6: 4, 9: 1}, back: backAfter(0)},
	"run out by a shorter interval, still there, and back": {
		between: steps{updates(45 * time.Second), sleeps(6 * time.Second), updates(time.Minute), sleeps(time.Second)},
		free:    free{0: 10, 1: 9, 6: 4, 9: 1}, back: back{1: time.Minute, 6: time.Minute, 9: time.Minute + 7*time.Second}},
	"a shorter interval, and back, and Reset": {between: steps{updates(30 * time.Second), updates(time.Minute), resets}, free: free{6: 10, 9: 7}},
	"a shorter interval, and back, and another rate": {between: steps{updates(30 * time.Second), updates(time.Minute), setsRate(20, 0)},
		free: free{6: 20, 9: 17}},
	"an interval shorter by more than the hold": {between: steps{updates(30 * time.Second)},
		free: free{0: 10, 1: 9, 6: 4}, back: back{1: 30 * time.Second, 6: 30 * time.Second}},
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
		r, err := c.ReserveAll(t.Context(), 0, others.Claim(2), l.Claim(permits, opts...))
		require.NoError(t, err)
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

// Migrate gives members of older layouts other ids. Such a reservation is held until its hold is over, and what was used
// is charged beside it.
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
		of, err := keyed.Reserve(t.Context(), "ann", 8, 0, rratelimiter.Hold(held))
		require.NoError(t, err)
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

// A hold as long as the interval changes nothing.
func TestHold_OfAnInterval(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{time.Minute, time.Hour, 1<<63 - 1} {
		synctest.Test(t, func(t *testing.T) {
			s := limitertest.NewScene(t, limitertest.Every(10, time.Minute))
			r := limitertest.Reserve(t, s.RateLimiter, 8, rratelimiter.Hold(d))
			assert.Equal(t, time.Minute, r.ResetAfter)
			sent := s.Sent.Total()
			same := limitertest.Reserve(t, s.RateLimiter, 1, rratelimiter.Hold(d))
			require.NoError(t, same.Settle(t.Context(), 1))
			assert.Equal(t, sent+1, s.Sent.Total(), "Settle of what was reserved asks Redis nothing")
			s.Until(time.Minute)
			require.NoError(t, r.Settle(t.Context(), 9))
			assert.EqualValues(t, 9, limitertest.Available(t, s.RateLimiter))
		})
	}
}

// The server's clock decides whether a hold is over.
func TestHold_ServerClockDecides(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-time.Second, held - time.Millisecond, held, time.Hour} {
		redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) {
			for renewals := range 3 {
				l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Minute))
				r := limitertest.Reserve(t, l, 6, rratelimiter.Hold(held))
				for range renewals {
					require.NoError(t, r.Renew(t.Context()))
				}
				step(ahead)
				require.NoError(t, r.Settle(t.Context(), 2))
				assert.EqualValues(t, 8, limitertest.Available(t, l), "ahead by %v after %d renewals", ahead, renewals)
			}
		})
	}
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

// What was used counts from the last Renew on, whatever others have done with the reservation since.
func TestRenew_SettledAfterwards(t *testing.T) {
	t.Parallel()
	for name, c := range lasting {
		for used, free := range map[int64]int64{0: 9, 2: 7, 6: 3, 8: 1, 20: -11} {
			for _, released := range []int64{0, 4} {
				redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
					l := limitertest.NewClient(t, rdb).RateLimiter("jobs", rratelimiter.WithDefault(rratelimiter.PerMinute(10)), rratelimiter.WithExact())
					r := limitertest.Reserve(t, l, 6, c.opts...)
					for range 4 {
						time.Sleep(c.lasts - time.Second)
						require.NoError(t, r.Renew(t.Context()))
					}
					time.Sleep(time.Millisecond)
					limitertest.MustAcquire(t, l, 1)
					time.Sleep(c.lasts / 2)
					want := free
					if released > 0 {
						require.NoError(t, l.Release(t.Context(), 1+released)) // the newest first
						want = 10 - min(used, 6-released) - max(0, used-6)
					}
					require.NoError(t, r.Settle(t.Context(), used))
					books := books{rdb, limitertest.KeysOf(l)}
					got, _ := books.free(t, name)
					assert.Equal(t, want, got, "%s, %d used, %d released", name, used, released)
					if used > 0 && used <= 6 {
						time.Sleep(time.Minute - c.lasts/2 - 2*time.Millisecond)
						assert.Equal(t, want, limitertest.Available(t, l), name)
						time.Sleep(time.Millisecond)
						assert.Equal(t, min(10, want+min(used, 6-released)), limitertest.Available(t, l), name)
					}
					require.ErrorIs(t, r.Renew(t.Context()), rratelimiter.ErrSettled)
				})
			}
		}
	}
}

// Renew fails if others may have the permits.
func TestRenew_OfWhatIsNotReserved(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, map[string]between{
		"Release of some": releases(1), "Release of all": releases(6), "Reset": resets, "Delete": deletes(false), "Delete, and made again": deletes(true),
		"another rate": setsRate(20, 0), "an interval": sleeps(time.Minute),
	}, func(t *testing.T, rdb redistest.Client, happens between) {
		l := limitertest.NewClient(t, rdb).RateLimiter("jobs")
		limitertest.MustTrySetRate(t, l, rratelimiter.PerMinute(10))
		r := limitertest.Reserve(t, l, 6)
		happens(t, l)
		require.ErrorIs(t, r.Renew(t.Context()), rratelimiter.ErrSettled)
	})
}

// shared is a limiter of several programs.
type shared struct {
	t    *testing.T
	rdb  redistest.Client
	rate int64 // an hour

	*rratelimiter.RateLimiter // of the last program
	engine.Behind
}

// onShared runs test in a bubble, with a first program.
func onShared(t *testing.T, rate int64, test func(t *testing.T, s *shared)) {
	t.Helper()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		s := &shared{t: t, rdb: rdb, rate: rate}
		s.program()
		test(t, s)
	})
}

// program begins a new program.
func (s *shared) program() {
	s.RateLimiter = limitertest.ByDefault(limitertest.NewClient(s.t, s.rdb), "shared", rratelimiter.PerHour(s.rate))
	s.Behind, _ = door.Behind[engine.Behind](s.RateLimiter)
}

// reserve reserves 100 permits, and returns by what other programs settle them.
func (s *shared) reserve(hold time.Duration) []byte {
	a, err := s.Engine.AcquireAll(s.t.Context(), []engine.Claim{{Limiter: s.Limiter, Permits: 100, Hold: hold}}, decide.Ask{Figures: true, Reserve: true})
	require.NoError(s.t, err)
	require.True(s.t, a.Granted)
	text, err := a.Each[0].Reserved.AppendBinary(nil)
	require.NoError(s.t, err)
	return text
}

func (s *shared) settle(text []byte, used int64) {
	settle, err := s.Engine.SettlerOf(s.Limiter, text)
	require.NoError(s.t, err)
	require.NoError(s.t, settle(s.t.Context(), used, func(err error) { assert.NoError(s.t, err) }))
}

// free returns the permits that are free, below 0 if more are in use.
func (s *shared) free() int64 {
	free := limitertest.Available(s.t, s.RateLimiter)
	if value, err := s.rdb.Get(s.t.Context(), "{shared}:value").Int64(); err == nil {
		return value
	}
	return free
}

// Whichever programs settle a reservation, and however often, it is charged once.
func TestSettlerOf_ChargesOnce(t *testing.T) {
	t.Parallel()
	type row struct {
		after         time.Duration
		first, second int64
		want          int64 // free after the first
	}
	limitertest.Each(t, map[string]row{
		"Less":            {time.Second, 37, 37, 163},
		"LessThenMore":    {time.Second, 37, 50, 163},
		"Nothing":         {time.Second, 0, 0, 200},
		"Exactly":         {time.Second, 100, 100, 100},
		"More":            {time.Second, 150, 150, 50},
		"MoreThenLess":    {time.Second, 150, 120, 50},
		"BeyondTheRate":   {time.Second, 300, 300, -100},
		"AfterHold":       {2 * time.Minute, 30, 30, 170},
		"AfterHoldOther":  {2 * time.Minute, 30, 40, 170},
		"AfterTheHour":    {61 * time.Minute, 30, 30, 170},
		"AtTheHoldsEnd":   {time.Minute, 130, 130, 70},
		"NothingAfterAll": {2 * time.Minute, 0, 0, 200},
	}, func(t *testing.T, tc row) {
		onShared(t, 200, func(t *testing.T, s *shared) {
			text := s.reserve(time.Minute)
			time.Sleep(tc.after)
			s.program()
			s.settle(text, tc.first)
			assert.Equal(t, tc.want, s.free())
			for range 2 {
				time.Sleep(time.Second)
				s.program()
				s.settle(text, tc.second)
				assert.Equal(t, tc.want, s.free())
			}
			time.Sleep(time.Hour + time.Second)
			assert.EqualValues(t, 200, s.free())
		})
	})
}

// What settles a reservation stays apart from other members, by which a later program finds it.
func TestSettlerOf_ChargesOnceThoughMembersAreMerged(t *testing.T) {
	t.Parallel()
	type row struct {
		hold, after time.Duration
		used        int64
	}
	limitertest.Each(t, map[string]row{
		"within the hold":      {time.Minute, time.Second, 150},
		"within the interval":  {time.Minute, 2 * time.Minute, 150},
		"later":                {time.Minute, 61 * time.Minute, 150},
		"held for an interval": {time.Hour, time.Second, 100},
	}, func(t *testing.T, row row) {
		onShared(t, 100_000, func(t *testing.T, s *shared) {
			takes := func(n int) {
				for range n {
					limitertest.MustAcquire(t, s.RateLimiter, 1)
					time.Sleep(50 * time.Millisecond)
				}
			}
			first := s.reserve(row.hold)
			time.Sleep(row.after)
			takes(100) // the first of an interval are never merged
			s.settle(first, row.used)
			for range 50 { // more than are listed as answered
				s.settle(s.reserve(row.hold), row.used)
			}
			takes(500)
			require.Less(t, s.rdb.ZCard(t.Context(), "{shared}:permits").Val(), int64(300), "members are merged")
			free := s.free()
			s.settle(first, row.used)
			assert.Equal(t, free, s.free())
			time.Sleep(time.Second)
			assert.Equal(t, 100_000-600-51*row.used, free)
			assert.Equal(t, 100_000-free, limitertest.InUse(t, s.rdb, limitertest.KeysOf(s.RateLimiter).Permits))
		})
	})
}

func TestSettlerOf_RefusesOtherText(t *testing.T) {
	t.Parallel()
	onShared(t, 200, func(t *testing.T, s *shared) {
		text := s.reserve(time.Minute)
		s.program()
		for _, wrong := range [][]byte{nil, {1}, text[:len(text)-1], append(slices.Clip(text), 0)} {
			_, err := s.Engine.SettlerOf(s.Limiter, wrong)
			assert.ErrorIs(t, err, rratelimiter.ErrInvalidConfig)
		}
		a, err := s.Engine.AcquireAll(t.Context(), []engine.Claim{{Limiter: s.Limiter, Permits: 1}}, decide.Ask{Figures: true, Reserve: true})
		require.NoError(t, err)
		_, err = a.Each[0].Reserved.AppendBinary(nil)
		assert.ErrorIs(t, err, rratelimiter.ErrUnsupported, "without a hold no server's date is known")
	})
}

func TestCharge_GoesBeyondTheLimit(t *testing.T) {
	t.Parallel()
	onShared(t, 200, func(t *testing.T, s *shared) {
		charge := func(permits int64) limit.Decision {
			require.NoError(t, s.Engine.Charge(t.Context(), s.Limiter, permits, func(error) {}))
			d, err := s.Peek(t.Context(), 0)
			require.NoError(t, err)
			return d
		}
		assert.True(t, charge(200).Granted, "all are used, and no more")
		assert.Equal(t, limit.Decision{Limit: 200, ResetAfter: time.Hour}, charge(5))
		assert.EqualValues(t, -5, s.free())
		time.Sleep(time.Hour + time.Millisecond)
		assert.EqualValues(t, 200, s.free())
	})
}

// A fixed window that refuses can be charged all the same, and says that it is over its limit.
func TestFixedWindow_IsChargedBeyondTheLimit(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l := fixedwindow.New(limitertest.NewClient(t, rdb), fixedwindow.Config{Limit: 10, Window: time.Hour})
		keyed, _ := door.Behind[outage.Keyed](l)
		charge := func(n int64) limit.Decision {
			a, err := keyed.Asker(decide.Ask{Key: "k"}).Ask(t.Context(), decide.Ask{Key: "k", Permits: max(1, min(n, 10)), Reserve: true})
			require.NoError(t, err)
			require.NoError(t, a.Settle(t.Context(), n, func(error) {}))
			d, err := l.Peek(t.Context(), "k", 0)
			require.NoError(t, err)
			return d
		}
		assert.True(t, charge(10).Granted)
		assert.Equal(t, limit.Decision{Limit: 10, RetryAfter: 0, ResetAfter: time.Hour}, charge(3))
		assert.Equal(t, "13", rdb.Get(t.Context(), "k").Val())
		assert.Equal(t, limit.Decision{Granted: true, Limit: 10, Remaining: 1, ResetAfter: time.Hour}, charge(-4))
	})
}
