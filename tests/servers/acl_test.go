package servers_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestACLOfOneLimiter(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"orders", "{shop}orders"} {
		limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
			server := redistest.StartRedis(t)
			admin := server.Client(t, nil)
			rdb := redistest.AddUser(t, server, nil, redistest.LeastCommands, redistest.KeysOf(name), redistest.KeysOf(limitertest.Besides(name)))
			cfg := rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour}
			for op, call := range limitertest.Operations {
				l := limitertest.NewClient(t, rdb).RateLimiter(name)
				require.NoError(t, l.SetRate(t.Context(), cfg))
				limitertest.MustAcquire(t, l, 3)
				require.NoError(t, call(t.Context(), l), op)
				require.NoError(t, admin.FlushAll(t.Context()).Err())
			}
			denied, err := admin.Do(t.Context(), "ACL", "LOG").Slice()
			require.NoError(t, err)
			for _, entry := range denied {
				// go-redis introduces itself, and does without it.
				assert.Contains(t, []any{"client", "client|setinfo", "client|maint_notifications"}, entry.(map[any]any)["object"])
			}
			other := limitertest.NewClient(t, rdb).RateLimiter(name + "x")
			_, err = other.TrySetRate(t.Context(), cfg)
			require.ErrorContains(t, err, "NOPERM")
			assert.Empty(t, limitertest.ReadState(t, admin, name+"x"))
		})
	}
}

func TestACLOnSeveralServers(t *testing.T) {
	t.Parallel()
	for what, connect := range map[string]func(t *testing.T, rules string) rratelimiter.Redis{
		"cluster": func(t *testing.T, rules string) rratelimiter.Redis {
			return redistest.StartCluster(t, 3, 0).AddUser(t, nil, rules, redistest.ClusterCommands)
		},
		"ring": func(t *testing.T, rules string) rratelimiter.Redis {
			// With a heartbeat, unlike the client of a test.
			opt := &redis.RingOptions{HeartbeatFrequency: 10 * time.Millisecond}
			return redistest.StartRing(t, 3).AddUser(t, opt, rules, redistest.RingCommands)
		},
		"sentinel": func(t *testing.T, rules string) rratelimiter.Redis {
			s := redistest.StartSentinel(t, 1, 30*time.Second)
			user := redistest.AddUser(t, s.Master(t), nil, rules).Options().Username
			return s.Client(t, &redis.FailoverOptions{Username: user, Password: user})
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rdb := connect(t, redistest.LeastCommands+" "+redistest.KeysWithPrefix("shop:"))
			client := limitertest.NewClient(t, rdb)
			for i := range 20 {
				l := client.RateLimiter("shop:" + strconv.Itoa(i))
				limitertest.MustTrySetRate(t, l, limitertest.Every(10, time.Hour))
				for op, call := range limitertest.Operations {
					require.NoError(t, l.SetRate(t.Context(), limitertest.Every(10, time.Hour)))
					limitertest.MustAcquire(t, l, 3)
					require.NoError(t, call(t.Context(), l), op)
				}
			}
		})
	}
}
