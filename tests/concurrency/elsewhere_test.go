package concurrency_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

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
