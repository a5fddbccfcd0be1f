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

// shared is a limiter of 200 an hour for several programs.
type shared struct {
	t   *testing.T
	rdb redistest.Client
}

// program returns a handle of a new program.
func (s shared) program() (*rratelimiter.RateLimiter, engine.Behind) {
	l := limitertest.ByDefault(limitertest.NewClient(s.t, s.rdb), "shared", rratelimiter.PerHour(200))
	behind, _ := door.Behind[engine.Behind](l)
	return l, behind
}

// reserve reserves 100 permits for a minute, and returns by what other programs settle them.
func (s shared) reserve() []byte {
	_, b := s.program()
	a, err := b.Engine.AcquireAll(s.t.Context(), []engine.Claim{{Limiter: b.Limiter, Permits: 100, Hold: time.Minute}},
		decide.Ask{Figures: true, Reserve: true})
	require.NoError(s.t, err)
	require.True(s.t, a.Granted)
	text, err := a.Each[0].Reserved.AppendBinary(nil)
	require.NoError(s.t, err)
	return text
}

// settle settles a reservation by a new program.
func (s shared) settle(text []byte, used int64) {
	_, b := s.program()
	settle, err := b.Engine.SettlerOf(b.Limiter, text)
	require.NoError(s.t, err)
	require.NoError(s.t, settle(s.t.Context(), used, func(err error) { assert.NoError(s.t, err) }))
}

// free returns the permits that are free, below 0 if more are in use.
func (s shared) free() int64 {
	l, _ := s.program()
	free, err := l.AvailablePermits(s.t.Context())
	require.NoError(s.t, err)
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
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			s := shared{t, rdb}
			text := s.reserve()
			time.Sleep(tc.after)
			s.settle(text, tc.first)
			assert.Equal(t, tc.want, s.free())
			for range 2 {
				time.Sleep(time.Second)
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
	for _, after := range []time.Duration{time.Second, 2 * time.Minute, 61 * time.Minute} { // within hold and interval, and later
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			l := limitertest.ByDefault(limitertest.NewClient(t, rdb), "shared", rratelimiter.PerHour(100_000))
			b, _ := door.Behind[engine.Behind](l)
			reserve := func() []byte {
				a, err := b.Engine.AcquireAll(t.Context(), []engine.Claim{{Limiter: b.Limiter, Permits: 100, Hold: time.Minute}},
					decide.Ask{Figures: true, Reserve: true})
				require.NoError(t, err)
				text, err := a.Each[0].Reserved.AppendBinary(nil)
				require.NoError(t, err)
				return text
			}
			settle := func(text []byte) {
				one, err := b.Engine.SettlerOf(b.Limiter, text)
				require.NoError(t, err)
				require.NoError(t, one(t.Context(), 150, func(error) {}))
			}
			takes := func(n int) {
				for range n {
					_, err := l.Take(t.Context(), 1)
					require.NoError(t, err)
					time.Sleep(50 * time.Millisecond)
				}
			}
			first := reserve()
			time.Sleep(after)
			takes(100) // the first of an interval are never merged
			settle(first)
			for range 50 { // more than are listed as answered
				settle(reserve())
			}
			takes(500)
			require.Less(t, rdb.ZCard(t.Context(), "{shared}:permits").Val(), int64(300), "members are merged")
			used := rdb.Get(t.Context(), "{shared}:value").Val()
			settle(first)
			assert.Equal(t, used, rdb.Get(t.Context(), "{shared}:value").Val())
		})
	}
}

func TestSettlerOf_RefusesOtherText(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		s := shared{t, rdb}
		text := s.reserve()
		_, b := s.program()
		for _, wrong := range [][]byte{nil, {1}, text[:len(text)-1], append(slices.Clip(text), 0)} {
			_, err := b.Engine.SettlerOf(b.Limiter, wrong)
			assert.ErrorIs(t, err, rratelimiter.ErrInvalidConfig)
		}
		a, err := b.Engine.AcquireAll(t.Context(), []engine.Claim{{Limiter: b.Limiter, Permits: 1}}, decide.Ask{Figures: true, Reserve: true})
		require.NoError(t, err)
		_, err = a.Each[0].Reserved.AppendBinary(nil)
		assert.ErrorIs(t, err, rratelimiter.ErrUnsupported, "without a hold no server's date is known")
	})
}

func TestCharge_GoesBeyondTheLimit(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		s := shared{t, rdb}
		l, b := s.program()
		peek := func() limit.Decision {
			d, err := l.Peek(t.Context(), 0)
			require.NoError(t, err)
			return d
		}
		require.NoError(t, b.Engine.Charge(t.Context(), b.Limiter, 200, func(error) {}))
		assert.True(t, peek().Granted, "all are used, and no more")
		require.NoError(t, b.Engine.Charge(t.Context(), b.Limiter, 5, func(error) {}))
		assert.Equal(t, limit.Decision{Limit: 200, ResetAfter: time.Hour}, peek())
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
		charge := func(n int64) {
			a, err := keyed.Asker(decide.Ask{Key: "k"}).Ask(t.Context(), decide.Ask{Key: "k", Permits: max(1, min(n, 10)), Reserve: true})
			require.NoError(t, err)
			require.NoError(t, a.Settle(t.Context(), n, func(error) {}))
		}
		peek := func() limit.Decision {
			d, err := l.Peek(t.Context(), "k", 0)
			require.NoError(t, err)
			return d
		}
		charge(10)
		assert.True(t, peek().Granted)
		charge(3)
		assert.Equal(t, limit.Decision{Limit: 10, RetryAfter: 0, ResetAfter: time.Hour}, peek())
		assert.Equal(t, "13", rdb.Get(t.Context(), "k").Val())
		charge(-4)
		assert.Equal(t, limit.Decision{Granted: true, Limit: 10, Remaining: 1, ResetAfter: time.Hour}, peek())
	})
}

// What another program may settle too stays as it is, also if its hold is as long as the interval.
func TestSettlerOf_MembersAreNotMerged(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l := limitertest.ByDefault(limitertest.NewClient(t, rdb), "shared", rratelimiter.PerHour(100_000))
		b, _ := door.Behind[engine.Behind](l)
		take := func() {
			for range 40 {
				assert.True(t, limitertest.Take(t, l, 1).Granted)
				time.Sleep(50 * time.Millisecond)
			}
		}
		take()
		a, err := b.Engine.AcquireAll(t.Context(), []engine.Claim{{Limiter: b.Limiter, Permits: 100, Hold: time.Hour}},
			decide.Ask{Figures: true, Reserve: true})
		require.NoError(t, err)
		text, err := a.Each[0].Reserved.AppendBinary(nil)
		require.NoError(t, err)
		for range 2 {
			settle, err := b.Engine.SettlerOf(b.Limiter, text)
			require.NoError(t, err)
			require.NoError(t, settle(t.Context(), 100, func(error) {}))
		}
		take()
		time.Sleep(time.Second)
		assert.EqualValues(t, 180, limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits))
		assert.EqualValues(t, 100_000-180, limitertest.Available(t, l))
	})
}
