package rratelimiter_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestDefectAFastClockDelaysOthersByMoreThanAnInterval(t *testing.T) {
	t.Parallel()
	bothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		virtual(t, func(t *testing.T, rdb *redis.Client) {
			client := newClient(t, rdb, rratelimiter.WithClientID("id"))
			l := client.RateLimiter(redistest.Name(t))
			mustTrySetRate(t, l, rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Second})
			peer := java{rdb: rdb, name: l.Name(), id: "id", fast: time.Minute}
			granted, _, err := peer.tryAcquire(t, 10)
			require.NoError(t, err)
			require.True(t, granted)

			d, err := l.Take(t.Context(), 1)
			require.NoError(t, err)
			assert.False(t, d.Granted)
			assert.Equal(t, time.Second, d.RetryAfter)
			assert.Equal(t, time.Second, d.ResetAfter)
			time.Sleep(time.Second)
			mustAcquire(t, l, 10)
		})
	})
}

func TestDefectAFastClockIsSetRightByTheNextRefusal(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(2, 10*time.Second))
		mustAcquire(t, l, 1)
		mustRefuse(t, l, 2)
		time.Sleep(time.Second)
		granted, _, err := java{rdb: rdb, name: l.Name(), fast: 5 * time.Second}.tryAcquire(t, 1)
		require.NoError(t, err)
		require.True(t, granted)
		mustRefuse(t, l, 1)
		time.Sleep(10 * time.Second)
		mustAcquire(t, l, 2)
	})
}

func TestDefectTheClientsClockDecides(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"ahead": time.Minute, "behind": -time.Minute} {
		t.Run("the server is "+name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, m := redistest.Mini(t)
				server := time.Now().Add(ahead)
				m.SetTime(server)
				l := newLimiter(t, rdb, every(10, time.Second))
				mustAcquire(t, l, 10)
				members := readState(t, rdb, l.Name())[keysOf(l).Permits].Members
				require.Len(t, members, 1)
				assert.InDelta(t, server.UnixMilli(), members[0].Score, 0)
				mustRefuse(t, l, 1)
				m.SetTime(server.Add(999 * time.Millisecond))
				mustRefuse(t, l, 1)
				m.SetTime(server.Add(time.Second))
				mustAcquire(t, l, 10)
			})
		})
	}
}
