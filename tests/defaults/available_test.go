package defaults_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestAvailablePermits_OfALimiterThatIsNotMadeYetAreItsDefaults(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		cfg := rratelimiter.Config{Rate: 5, Interval: time.Minute, KeepAlive: time.Hour}
		perClient := cfg
		perClient.Type = rratelimiter.PerClient
		client := limitertest.NewClient(t, rdb)
		for name, l := range map[string]*rratelimiter.RateLimiter{
			"overall":    client.RateLimiter("overall", rratelimiter.WithDefault(cfg)),
			"per client": client.RateLimiter("per client", rratelimiter.WithDefault(perClient)),
			"of a Keyed": client.Keyed("users:", cfg).Limiter("ann"),
		} {
			assert.EqualValues(t, 5, limitertest.Available(t, l), "%s, unused", name)
			exists, err := l.Exists(t.Context())
			require.NoError(t, err)
			assert.False(t, exists, name)

			limitertest.MustAcquire(t, l, 2)
			assert.EqualValues(t, 3, limitertest.Available(t, l), name)
			time.Sleep(2 * time.Hour)
			assert.EqualValues(t, 5, limitertest.Available(t, l), "%s, expired", name)
		}

		l := client.RateLimiter("lost", rratelimiter.WithDefault(cfg))
		limitertest.MustAcquire(t, l, 2)
		require.NoError(t, rdb.Del(t.Context(), "lost").Err())
		assert.EqualValues(t, 3, limitertest.Available(t, l), "only the configuration was lost")

		_, err := client.RateLimiter("none").AvailablePermits(t.Context())
		require.ErrorIs(t, err, rratelimiter.ErrNotInitialized)
	})
}
