package faults_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestDefectAFastClockDelaysOthersByMoreThanAnInterval(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			client := limitertest.NewClient(t, rdb, rratelimiter.WithClientID("id"))
			l := client.RateLimiter(redistest.Name(t))
			limitertest.MustTrySetRate(t, l, rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Second})
			peer := limitertest.Java{Redis: rdb, Name: l.Name(), ID: "id", Fast: time.Minute}
			granted, _, err := peer.TryAcquire(t, 10)
			require.NoError(t, err)
			require.True(t, granted)

			d, err := l.Take(t.Context(), 1)
			require.NoError(t, err)
			assert.False(t, d.Granted)
			assert.Equal(t, time.Second, d.RetryAfter)
			assert.Equal(t, time.Second, d.ResetAfter)
			time.Sleep(time.Second)
			limitertest.MustAcquire(t, l, 10)
		})
	})
}

func TestDefectAFastClockIsSetRightByTheNextRefusal(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(2, 10*time.Second))
		limitertest.MustAcquire(t, l, 1)
		limitertest.MustRefuse(t, l, 2)
		time.Sleep(time.Second)
		granted, _, err := limitertest.Java{Redis: rdb, Name: l.Name(), Fast: 5 * time.Second}.TryAcquire(t, 1)
		require.NoError(t, err)
		require.True(t, granted)
		limitertest.MustRefuse(t, l, 1)
		time.Sleep(10 * time.Second)
		limitertest.MustAcquire(t, l, 2)
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
				l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Second))
				limitertest.MustAcquire(t, l, 10)
				members := limitertest.ReadState(t, rdb, l.Name())[limitertest.KeysOf(l).Permits].Members
				require.Len(t, members, 1)
				assert.InDelta(t, server.UnixMilli(), members[0].Score, 0)
				limitertest.MustRefuse(t, l, 1)
				m.SetTime(server.Add(999 * time.Millisecond))
				limitertest.MustRefuse(t, l, 1)
				m.SetTime(server.Add(time.Second))
				limitertest.MustAcquire(t, l, 10)
			})
		})
	}
}
