package hostile_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Found by FuzzState.
func TestTheListOfAnsweredAttemptsIsNone(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Hour))
		require.NoError(t, rdb.HSet(t.Context(), l.Name(), "answered", " 5").Err())
		assert.Equal(t, 10, limitertest.Grants(t, l, 12))
	})
}

// Found by FuzzStateOnServer: the difference of the two numbers is none that Lua can
// count.
func TestAValueBelowZeroOfTheHighestRate(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(rratelimiter.MaxRate, time.Hour))
		require.NoError(t, rdb.Set(t.Context(), limitertest.KeysOf(l).Value, -128, 0).Err())
		limitertest.MustAcquire(t, l, 1)
		assert.Equal(t, int64(rratelimiter.MaxRate-1), limitertest.Available(t, l))
	})
}
