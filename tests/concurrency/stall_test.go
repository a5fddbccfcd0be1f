package concurrency_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// TestBoundedWrites: to write a row takes a server several times as long as to
// read one, so a script call writes fewer than it may read.
func TestBoundedWrites(t *testing.T) {
	t.Parallel()
	const count, hour = 3000, time.Hour
	older := []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1}
	for name, tc := range map[string]struct {
		layouts []codec.Layout
		age     time.Duration
		use     func(t *testing.T, client *rratelimiter.Client, l *rratelimiter.RateLimiter)
		free    int64
	}{
		"older layouts": {older, hour / 2, func(t *testing.T, client *rratelimiter.Client, l *rratelimiter.RateLimiter) {
			written, err := client.Migrate(t.Context(), l.Name())
			require.NoError(t, err)
			assert.EqualValues(t, count, written)
		}, 0},
		"an older layout now and then": {[]codec.Layout{codec.LayoutD2, codec.LayoutD2, codec.LayoutD2, codec.LayoutC}, hour / 2,
			func(t *testing.T, client *rratelimiter.Client, l *rratelimiter.RateLimiter) {
				written, err := client.Migrate(t.Context(), l.Name())
				require.NoError(t, err)
				assert.EqualValues(t, count/4, written)
			}, 0},
		"dated in the future": {older, -hour, func(t *testing.T, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) {
			assert.Zero(t, limitertest.Available(t, l))
		}, 0},
		"released": {older, hour / 2, func(t *testing.T, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) {
			require.NoError(t, l.Release(t.Context(), count-1))
		}, count - 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.StartRedis(t)
			rdb := server.Client(t, nil)
			client := limitertest.NewClient(t, rdb)
			l := client.RateLimiter(redistest.Name(t))
			limitertest.MustTrySetRate(t, l, limitertest.Every(count, hour))
			k := limitertest.KeysOf(l)
			now := limitertest.ServerNow(t, rdb)
			rows := make([]redis.Z, count)
			for i := range rows {
				score := now - tc.age.Milliseconds() + int64(i/10)
				rows[i] = redis.Z{Score: float64(score), Member: limitertest.NewMember(t, tc.layouts[i%len(tc.layouts)], 1)}
			}
			require.NoError(t, rdb.ZAdd(t.Context(), k.Permits, rows...).Err())
			require.NoError(t, rdb.Set(t.Context(), k.Value, 0, 0).Err())

			calls := redistest.ScriptCalls(t, server.Addr())
			tc.use(t, client, l)
			for _, commands := range calls() {
				written := 0
				for _, args := range commands {
					switch args[0] {
					case "zadd":
						written += (len(args) - 2) / 2
					case "zrem":
						written += len(args) - 2
					}
				}
				require.LessOrEqual(t, written, 130, "rows that one script call wrote")
			}
			assert.Equal(t, tc.free, limitertest.Available(t, l))
			assert.Equal(t, count-tc.free, limitertest.InUse(t, rdb, k.Permits))
		})
	}
}

// A key whose end has passed when it is set would be freed at once, a large set
// for as long as that takes.
func TestExpireAtAMomentThatHasPassedFreesInTheBackground(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	rdb := server.Client(t, nil)
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		l := limitertest.NewLimiter(t, rdb, rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour})
		limitertest.MustAcquire(t, l, 1)
		calls := redistest.ScriptCalls(t, server.Addr())
		there, err := l.ExpireAt(t.Context(), time.Now().Add(-time.Minute))
		require.NoError(t, err)
		assert.True(t, there)
		assert.Empty(t, limitertest.LimiterKeys(t, rdb, l.Name()))
		there, err = l.ExpireAt(t.Context(), time.Now().Add(-time.Minute))
		require.NoError(t, err)
		assert.False(t, there)
		for _, commands := range calls() {
			for _, args := range commands {
				of := len(args) > 1 && strings.Contains(args[1], l.Name())
				assert.False(t, of && args[0] == "pexpireat", args)
			}
		}
	})
}
