package concurrency_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// lasting is how long a reservation counts that has no hold, or that of these tests.
var lasting = map[string]struct {
	opts  []rratelimiter.ReserveOption
	lasts time.Duration
}{
	"an interval": {nil, time.Minute}, "held": {[]rratelimiter.ReserveOption{rratelimiter.Hold(held)}, held},
}

// A reservation that is renewed in time stays for as long as that goes on, and counts from the last time on.
func TestRenew_CountsFromNowOn(t *testing.T) {
	t.Parallel()
	for name, c := range lasting {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
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
		})
	}
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

// Renew fails if others may have the permits, and does nothing if Redis was not charged.
func TestRenew_OfWhatIsNotReserved(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]between{
		"Release of some": releases(1), "Release of all": releases(6), "Reset": resets, "Delete": deletes(false), "Delete, and made again": deletes(true),
		"another rate": setsRate(20, 0), "an interval": sleeps(time.Minute),
	} {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			l := limitertest.NewClient(t, rdb).RateLimiter("jobs")
			limitertest.MustTrySetRate(t, l, rratelimiter.PerMinute(10))
			r := limitertest.Reserve(t, l, 6)
			happens(t, l)
			require.ErrorIs(t, r.Renew(t.Context()), rratelimiter.ErrSettled, name)
		})
	}
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		byDefault := rratelimiter.WithDefault(rratelimiter.PerMinute(10))
		client := limitertest.NewClient(t, rdb, rratelimiter.WithFailure(limit.FailOpen()))
		l := client.RateLimiter("jobs", byDefault)
		limitertest.MustAcquire(t, l, 9)
		refused, err := l.Reserve(t.Context(), 2, 0)
		require.NoError(t, err)
		shadow, err := client.RateLimiter("jobs", byDefault, rratelimiter.WithShadow()).Reserve(t.Context(), 2, 0)
		require.NoError(t, err)
		require.NoError(t, limitertest.Second(limitertest.NewClient(t, rdb).RateLimiter("other").TrySetRate(t.Context(), rratelimiter.PerMinute(1))))
		calls := limitertest.CountCommands(rdb)
		require.NoError(t, refused.Renew(t.Context()))
		require.NoError(t, shadow.Renew(t.Context()))
		assert.Zero(t, calls.Scripts())
		require.NoError(t, client.Close(t.Context()))
		require.NoError(t, refused.Renew(t.Context()))
	})
}

func TestRenew_OfSeveralLimiters(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		a := client.RateLimiter("{shop}a", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
		b := client.RateLimiter("{shop}b", rratelimiter.WithDefault(rratelimiter.PerMinute(10)))
		r, err := client.ReserveAll(t.Context(), 0, a.Claim(3), b.Claim(4, rratelimiter.Hold(held)))
		require.NoError(t, err)
		for range 6 {
			time.Sleep(held - time.Second)
			require.NoError(t, r.Renew(t.Context()))
		}
		assert.EqualValues(t, 7, limitertest.Available(t, a))
		assert.EqualValues(t, 6, limitertest.Available(t, b))
		time.Sleep(held)
		err = r.Renew(t.Context())
		require.ErrorIs(t, err, rratelimiter.ErrSettled)
		require.ErrorContains(t, err, "{shop}b")
		assert.NotContains(t, err.Error(), "{shop}a")
		require.NoError(t, r.Cancel(t.Context()))
		assert.EqualValues(t, 10, limitertest.Available(t, a))
	})
}
