package concurrency_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// crowd is a limiter on a server of its own whose set holds 100,000 members of
// one permit each, as Redisson leaves them.
type crowd struct {
	rdb     redis.UniversalClient
	limiter *rratelimiter.RateLimiter
}

const crowdSize = 100_000

func TestBoundedWork(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	in := func(age time.Duration, count int) map[time.Duration]int { return map[time.Duration]int{age: count} }
	halves := map[time.Duration]int{2 * hour: crowdSize / 2, hour / 2: crowdSize / 2}
	for name, tc := range map[string]struct {
		members map[time.Duration]int // by age
		rate    int64
		value   int64 // below 0: missing
		use     func(t *testing.T, c crowd)
	}{
		"all has run out": {in(2*hour, crowdSize), crowdSize, 0, func(t *testing.T, c crowd) {
			limitertest.MustAcquire(t, c.limiter, 1)
			assert.EqualValues(t, crowdSize-1, limitertest.Available(t, c.limiter))
			assert.EqualValues(t, 1, c.rdb.ZCard(t.Context(), limitertest.KeysOf(c.limiter).Permits).Val())
		}},
		"all has run out, and there is value enough": {in(2*hour, crowdSize), 2 * crowdSize, crowdSize, func(t *testing.T, c crowd) {
			assert.Equal(t, 300, limitertest.Grants(t, c.limiter, 300))
			assert.EqualValues(t, 2*crowdSize-300, limitertest.Available(t, c.limiter))
		}},
		"all in use": {in(hour/2, crowdSize), crowdSize, 0, func(t *testing.T, c crowd) {
			for _, permits := range []int64{1, 100} {
				d, err := c.limiter.Take(t.Context(), permits)
				require.NoError(t, err)
				assert.False(t, d.Granted)
				assert.InDelta(t, hour/2, d.RetryAfter, float64(time.Minute))
				assert.InDelta(t, hour/2, d.ResetAfter, float64(time.Minute))
			}
			assert.Zero(t, limitertest.Available(t, c.limiter))
		}},
		"more is asked for than a few hundred rows hold": {in(hour/2, crowdSize), crowdSize, 0, func(t *testing.T, c crowd) {
			d, err := c.limiter.Take(t.Context(), crowdSize/2)
			require.NoError(t, err)
			assert.False(t, d.Granted)
			assert.InDelta(t, hour/2, d.RetryAfter, float64(time.Minute))
		}},
		"release of all": {in(hour/2, crowdSize), crowdSize, 0, func(t *testing.T, c crowd) {
			require.NoError(t, c.limiter.Release(t.Context(), crowdSize))
			assert.EqualValues(t, crowdSize, limitertest.Available(t, c.limiter))
			assert.Empty(t, c.rdb.ZCard(t.Context(), limitertest.KeysOf(c.limiter).Permits).Val())
		}},
		"release of some": {in(hour/2, crowdSize), crowdSize, 0, func(t *testing.T, c crowd) {
			require.NoError(t, c.limiter.Release(t.Context(), 1000))
			assert.EqualValues(t, 1000, limitertest.Available(t, c.limiter))
			assert.EqualValues(t, crowdSize-1000, limitertest.InUse(t, c.rdb, limitertest.KeysOf(c.limiter).Permits))
		}},
		"half has run out": {halves, crowdSize, 0, func(t *testing.T, c crowd) {
			limitertest.MustAcquire(t, c.limiter, 1)
			assert.EqualValues(t, crowdSize/2-1, limitertest.Available(t, c.limiter))
			limitertest.MustRefuse(t, c.limiter, crowdSize/2)
			limitertest.MustAcquire(t, c.limiter, crowdSize/2-1)
		}},
		"a request for all that has run out": {halves, crowdSize, 0, func(t *testing.T, c crowd) {
			limitertest.MustAcquire(t, c.limiter, crowdSize/2)
			limitertest.MustRefuse(t, c.limiter, 1)
		}},
		"figures of half that has run out": {halves, crowdSize, 0, func(t *testing.T, c crowd) {
			d, err := c.limiter.Take(t.Context(), 1)
			require.NoError(t, err)
			assert.True(t, d.Granted)
			assert.EqualValues(t, crowdSize/2-1, d.Remaining)
		}},
		"release while half has run out": {halves, crowdSize, 0, func(t *testing.T, c crowd) {
			require.NoError(t, c.limiter.Release(t.Context(), 1000))
			assert.EqualValues(t, crowdSize/2+1000, limitertest.Available(t, c.limiter))
		}},
		"no value": {in(hour/2, crowdSize), crowdSize + 50, -1, func(t *testing.T, c crowd) {
			assert.Equal(t, 50, limitertest.Grants(t, c.limiter, 52))
			assert.Zero(t, limitertest.Available(t, c.limiter))
		}},
		"no value, and half has run out": {halves, crowdSize, -1, func(t *testing.T, c crowd) {
			assert.EqualValues(t, crowdSize/2, limitertest.Available(t, c.limiter))
		}},
		"release without a value": {in(hour/2, crowdSize), crowdSize, -1, func(t *testing.T, c crowd) {
			require.NoError(t, c.limiter.Release(t.Context(), 1000))
			assert.EqualValues(t, 1000, limitertest.Available(t, c.limiter))
		}},
		"dated in the future": {in(-2*hour, crowdSize), crowdSize, 0, func(t *testing.T, c crowd) {
			d, err := c.limiter.Take(t.Context(), 1)
			require.NoError(t, err)
			assert.False(t, d.Granted)
			assert.Greater(t, d.RetryAfter, 59*time.Minute)
			assert.LessOrEqual(t, d.RetryAfter, hour)
			assert.LessOrEqual(t, d.ResetAfter, hour)
			assert.Zero(t, limitertest.Available(t, c.limiter))
		}},
		"half dated in the future, half run out": {map[time.Duration]int{2 * hour: crowdSize / 2, -hour: crowdSize / 2}, crowdSize, 0,
			func(t *testing.T, c crowd) {
				assert.EqualValues(t, crowdSize/2, limitertest.Available(t, c.limiter))
				limitertest.MustRefuse(t, c.limiter, crowdSize/2+1)
			}},
		"a rate kept with its state": {in(hour/2, crowdSize), crowdSize, 0, func(t *testing.T, c crowd) {
			require.NoError(t, c.limiter.SetRate(t.Context(), limitertest.Every(crowdSize+70, hour), rratelimiter.KeepState()))
			assert.EqualValues(t, 70, limitertest.Available(t, c.limiter))
			require.NoError(t, c.limiter.SetRate(t.Context(), limitertest.Every(crowdSize-70, hour), rratelimiter.KeepState()))
			value, _ := limitertest.StoredValue(t, c.rdb, limitertest.KeysOf(c.limiter).Value)
			assert.EqualValues(t, -70, value)
			require.NoError(t, c.limiter.SetRate(t.Context(), limitertest.Every(crowdSize, hour/4), rratelimiter.KeepState()))
			assert.EqualValues(t, crowdSize, limitertest.Available(t, c.limiter), "all has run out by the shorter interval")
		}},
		"a rate kept without a value": {halves, crowdSize, -1, func(t *testing.T, c crowd) {
			require.NoError(t, c.limiter.SetRate(t.Context(), limitertest.Every(crowdSize+70, hour), rratelimiter.KeepState()))
			assert.EqualValues(t, crowdSize/2+70, limitertest.Available(t, c.limiter))
		}},
		"a rate set where it was lost": {halves, crowdSize, 0, func(t *testing.T, c crowd) {
			require.NoError(t, c.rdb.Del(t.Context(), c.limiter.Name()).Err())
			limitertest.MustTrySetRate(t, c.limiter, limitertest.Every(crowdSize/2+70, hour))
			assert.EqualValues(t, 70, limitertest.Available(t, c.limiter))
		}},
		"a rate kept where it was lost": {halves, crowdSize, 0, func(t *testing.T, c crowd) {
			require.NoError(t, c.rdb.Del(t.Context(), c.limiter.Name()).Err())
			require.NoError(t, c.limiter.SetRate(t.Context(), limitertest.Every(crowdSize/2+70, hour), rratelimiter.KeepState()))
			assert.EqualValues(t, 70, limitertest.Available(t, c.limiter))
		}},
		"a default where the rate was lost": {halves, crowdSize, crowdSize, func(t *testing.T, c crowd) {
			require.NoError(t, c.rdb.Del(t.Context(), c.limiter.Name()).Err())
			byDefault := limitertest.NewClient(t, c.rdb).RateLimiter(c.limiter.Name(), rratelimiter.WithDefault(limitertest.Every(crowdSize/2+70, hour)))
			limitertest.MustRefuse(t, byDefault, 71)
			limitertest.MustAcquire(t, byDefault, 70)
		}},
		"defaults of two where the rates were lost": {halves, crowdSize, crowdSize, func(t *testing.T, c crowd) {
			other := redisson.KeysOf(limitertest.Besides(c.limiter.Name()), "").Permits
			limitertest.AddGrants(t, c.rdb, other, 2*hour, crowdSize/4, 1)
			limitertest.AddGrants(t, c.rdb, other, hour/2, crowdSize/2, 1)
			require.NoError(t, c.rdb.Del(t.Context(), c.limiter.Name()).Err())
			client := limitertest.NewClient(t, c.rdb)
			set := []*rratelimiter.RateLimiter{
				client.RateLimiter(c.limiter.Name(), rratelimiter.WithDefault(limitertest.Every(crowdSize, hour))),
				client.RateLimiter(limitertest.Besides(c.limiter.Name()), rratelimiter.WithDefault(limitertest.Every(crowdSize/2+70, hour))),
			}
			for _, permits := range []int64{71, 70} {
				granted, err := client.TryAcquireAll(t.Context(), permits, 0, set...)
				require.NoError(t, err)
				assert.Equal(t, permits == 70, granted)
			}
		}},
		"set, renamed and deleted": {in(hour/2, crowdSize), crowdSize, 0, func(t *testing.T, c crowd) {
			require.NoError(t, c.limiter.Rename(t.Context(), "elsewhere"))
			require.NoError(t, c.limiter.SetRate(t.Context(), limitertest.Every(1, hour)))
			require.NoError(t, c.limiter.Rename(t.Context(), "elsewhere"))
			_, err := c.limiter.Delete(t.Context())
			require.NoError(t, err)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.StartRedis(t)
			c := crowd{rdb: server.Client(t, nil)}
			c.limiter = limitertest.NewLimiter(t, c.rdb, limitertest.Every(tc.rate, hour))
			for age, count := range tc.members {
				limitertest.AddGrants(t, c.rdb, limitertest.KeysOf(c.limiter).Permits, age, count, 1)
			}
			if tc.value >= 0 {
				require.NoError(t, c.rdb.Set(t.Context(), limitertest.KeysOf(c.limiter).Value, tc.value, 0).Err())
			}
			watch := monitor(t, server.Addr())
			tc.use(t, c)
			watch(t)
		})
	}
}

// monitor notes all that a server does. The function it returns checks that no
// script call did more than a bounded piece of work.
func monitor(t *testing.T, addr string) func(t *testing.T) {
	t.Helper()
	calls := redistest.ScriptCalls(t, addr)
	return func(t *testing.T) {
		t.Helper()
		for _, commands := range calls() {
			rows := 0
			for _, args := range commands {
				rows += span(args)
			}
			require.LessOrEqual(t, len(commands), 1000, "commands of one script call")
			// Some of about 500 rows are asked for twice, and then removed.
			require.LessOrEqual(t, rows, 1500, "rows that one script call asked for")
		}
	}
}

// span returns how many rows of a sorted set a command may touch.
func span(args []string) int {
	number := func(i int) int {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			return crowdSize
		}
		return n
	}
	switch args[0] {
	case "zrange", "zrevrange", "zremrangebyrank":
		from, to := number(2), number(3)
		if (from < 0) != (to < 0) {
			return crowdSize
		}
		return to - from + 1
	case "zrangebyscore", "zrevrangebyscore":
		for i, arg := range args {
			if strings.EqualFold(arg, "limit") {
				return number(i + 2)
			}
		}
		return crowdSize
	case "zremrangebyscore", "del", "zrangestore", "zunionstore":
		return crowdSize
	}
	return 0
}
