package rratelimiter_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// Without the configuration nobody knows of which rate the value is the rest: the
// permits in use count, so that no more than the new rate is granted.
func TestKeepStateWhereTheConfigurationIsLost(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, cfg := range []rratelimiter.Config{every(1, time.Hour), every(2, time.Hour), every(9, time.Hour), perClient(2, time.Hour)} {
			before := cfg
			before.Rate = 5
			l := newLimiter(t, rdb, before)
			mustAcquire(t, l, 1)
			require.NoError(t, rdb.Del(t.Context(), l.Name()).Err())
			require.NoError(t, l.SetRate(t.Context(), cfg, rratelimiter.KeepState()))
			assert.EqualValues(t, cfg.Rate-1, grants(t, l, 20))
		}
	})
}

// What is in use no more tells nothing either: a Redisson would take the value as
// it is for what is free.
func TestKeepStateWhereTheConfigurationIsLostAndAllHasRunOut(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := newLimiter(t, rdb, every(50, time.Hour))
		mustAcquire(t, l, 1)
		time.Sleep(2 * time.Minute)
		require.NoError(t, rdb.Del(t.Context(), l.Name()).Err())
		require.NoError(t, l.SetRate(t.Context(), every(2, time.Minute), rratelimiter.KeepState()))
		assert.Equal(t, []string{l.Name()}, limiterKeys(t, rdb, l.Name()))
		assert.Equal(t, 2, grants(t, l, 20))
	})
}
