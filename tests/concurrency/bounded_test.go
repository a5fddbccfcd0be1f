package concurrency_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// pileUp adds members of one permit each, so many of each age, as Redisson leaves them, and
// sets the value; one below 0 is missing.
func pileUp(t testing.TB, rdb redis.UniversalClient, l *rratelimiter.RateLimiter, members map[time.Duration]int, value int64) {
	t.Helper()
	for age, count := range members {
		limitertest.AddGrants(t, rdb, limitertest.KeysOf(l).Permits, age, count, 1)
	}
	if value >= 0 {
		require.NoError(t, rdb.Set(t.Context(), limitertest.KeysOf(l).Value, value, 0).Err())
	}
}

// crowd is a limiter on a server of its own whose set holds 100,000 members.
type crowd struct {
	*rratelimiter.RateLimiter

	rdb redis.UniversalClient
}

func (c crowd) free(t *testing.T) int64 {
	t.Helper()
	return limitertest.Available(t, c.RateLimiter)
}

func (c crowd) takes(t *testing.T, permits int64, want bool) {
	t.Helper()
	require.Equal(t, want, limitertest.Try(t, c.RateLimiter, permits), "%d permits", permits)
}

// refused checks what Take says of permits that come back in half an hour.
func (c crowd) refused(t *testing.T, permits int64) {
	t.Helper()
	d := mustTake(t, c.RateLimiter, permits)
	assert.False(t, d.Granted)
	assert.InDelta(t, hour/2, d.RetryAfter, float64(time.Minute))
	assert.InDelta(t, hour/2, d.ResetAfter, float64(time.Minute))
}

func (c crowd) keepRate(t *testing.T, rate int64, interval time.Duration) {
	t.Helper()
	require.NoError(t, c.SetRate(t.Context(), limitertest.Every(rate, interval), rratelimiter.KeepState()))
}

const (
	crowdSize = 100_000
	hour      = time.Hour
)

type boundedTest struct {
	members map[time.Duration]int // by age
	rate    int64
	value   int64 // below 0: missing
	use     func(t *testing.T, c crowd)
}

var (
	runOut = map[time.Duration]int{2 * hour: crowdSize}
	inUse  = map[time.Duration]int{hour / 2: crowdSize}
	halves = map[time.Duration]int{2 * hour: crowdSize / 2, hour / 2: crowdSize / 2}
)

var boundedTests = map[string]boundedTest{
	"all has run out": {runOut, crowdSize, 0, func(t *testing.T, c crowd) {
		c.takes(t, 1, true)
		assert.EqualValues(t, crowdSize-1, c.free(t))
		assert.EqualValues(t, 1, c.rdb.ZCard(t.Context(), limitertest.KeysOf(c.RateLimiter).Permits).Val())
	}},
	"all has run out, and there is value enough": {runOut, 2 * crowdSize, crowdSize, func(t *testing.T, c crowd) {
		assert.Equal(t, 300, limitertest.Grants(t, c.RateLimiter, 300))
		assert.EqualValues(t, 2*crowdSize-300, c.free(t))
	}},
	"all in use": {inUse, crowdSize, 0, func(t *testing.T, c crowd) {
		c.refused(t, 1)
		c.refused(t, 100)
		assert.Zero(t, c.free(t))
	}},
	"more is asked for than a few hundred rows hold": {inUse, crowdSize, 0, func(t *testing.T, c crowd) {
		c.refused(t, crowdSize/2)
	}},
	"release of all": {inUse, crowdSize, 0, func(t *testing.T, c crowd) {
		require.NoError(t, c.Release(t.Context(), crowdSize))
		assert.EqualValues(t, crowdSize, c.free(t))
		assert.Empty(t, c.rdb.ZCard(t.Context(), limitertest.KeysOf(c.RateLimiter).Permits).Val())
	}},
	"release of some": {inUse, crowdSize, 0, func(t *testing.T, c crowd) {
		require.NoError(t, c.Release(t.Context(), 1000))
		assert.EqualValues(t, 1000, c.free(t))
		assert.EqualValues(t, crowdSize-1000, limitertest.InUse(t, c.rdb, limitertest.KeysOf(c.RateLimiter).Permits))
	}},
	"half has run out": {halves, crowdSize, 0, func(t *testing.T, c crowd) {
		c.takes(t, 1, true)
		assert.EqualValues(t, crowdSize/2-1, c.free(t))
		c.takes(t, crowdSize/2, false)
		c.takes(t, crowdSize/2-1, true)
	}},
	"a request for all that has run out": {halves, crowdSize, 0, func(t *testing.T, c crowd) {
		c.takes(t, crowdSize/2, true)
		c.takes(t, 1, false)
	}},
	"figures of half that has run out": {halves, crowdSize, 0, func(t *testing.T, c crowd) {
		d := mustTake(t, c.RateLimiter, 1)
		assert.True(t, d.Granted)
		assert.EqualValues(t, crowdSize/2-1, d.Remaining)
	}},
	"release while half has run out": {halves, crowdSize, 0, func(t *testing.T, c crowd) {
		require.NoError(t, c.Release(t.Context(), 1000))
		assert.EqualValues(t, crowdSize/2+1000, c.free(t))
	}},
	"no value": {inUse, crowdSize + 50, -1, func(t *testing.T, c crowd) {
		assert.Equal(t, 50, limitertest.Grants(t, c.RateLimiter, 52))
		assert.Zero(t, c.free(t))
	}},
	"no value, and half has run out": {halves, crowdSize, -1, func(t *testing.T, c crowd) {
		assert.EqualValues(t, crowdSize/2, c.free(t))
	}},
	"release without a value": {inUse, crowdSize, -1, func(t *testing.T, c crowd) {
		require.NoError(t, c.Release(t.Context(), 1000))
		assert.EqualValues(t, 1000, c.free(t))
	}},
	"dated in the future": {map[time.Duration]int{-2 * hour: crowdSize}, crowdSize, 0, func(t *testing.T, c crowd) {
		d := mustTake(t, c.RateLimiter, 1)
		assert.False(t, d.Granted)
		assert.Greater(t, d.RetryAfter, 59*time.Minute)
		assert.LessOrEqual(t, d.RetryAfter, hour)
		assert.LessOrEqual(t, d.ResetAfter, hour)
		assert.Zero(t, c.free(t))
	}},
	"half dated in the future, half run out": {
		map[time.Duration]int{2 * hour: crowdSize / 2, -hour: crowdSize / 2}, crowdSize, 0, func(t *testing.T, c crowd) {
			assert.EqualValues(t, crowdSize/2, c.free(t))
			c.takes(t, crowdSize/2+1, false)
		},
	},
	"a rate kept with its state": {inUse, crowdSize, 0, func(t *testing.T, c crowd) {
		c.keepRate(t, crowdSize+70, hour)
		assert.EqualValues(t, 70, c.free(t))
		c.keepRate(t, crowdSize-70, hour)
		value, _ := limitertest.StoredValue(t, c.rdb, limitertest.KeysOf(c.RateLimiter).Value)
		assert.EqualValues(t, -70, value)
		c.keepRate(t, crowdSize, hour/4)
		assert.EqualValues(t, crowdSize, c.free(t), "all has run out by the shorter interval")
	}},
	"a rate kept without a value": {halves, crowdSize, -1, func(t *testing.T, c crowd) {
		c.keepRate(t, crowdSize+70, hour)
		assert.EqualValues(t, crowdSize/2+70, c.free(t))
	}},
	"a rate set where it was lost": {halves, crowdSize, 0, func(t *testing.T, c crowd) {
		damage(t, c.rdb, c.RateLimiter, "DEL config")
		limitertest.MustTrySetRate(t, c.RateLimiter, limitertest.Every(crowdSize/2+70, hour))
		assert.EqualValues(t, 70, c.free(t))
	}},
	"a rate kept where it was lost": {halves, crowdSize, 0, func(t *testing.T, c crowd) {
		damage(t, c.rdb, c.RateLimiter, "DEL config")
		c.keepRate(t, crowdSize/2+70, hour)
		assert.EqualValues(t, 70, c.free(t))
	}},
	"a default where the rate was lost": {halves, crowdSize, crowdSize, func(t *testing.T, c crowd) {
		damage(t, c.rdb, c.RateLimiter, "DEL config")
		l := byDefault(limitertest.NewClient(t, c.rdb), c.Name(), limitertest.Every(crowdSize/2+70, hour))
		limitertest.MustRefuse(t, l, 71)
		limitertest.MustAcquire(t, l, 70)
	}},
	"defaults of two where the rates were lost": {halves, crowdSize, crowdSize, func(t *testing.T, c crowd) {
		name := limitertest.Besides(c.Name())
		other := redisson.KeysOf(name, "").Permits
		limitertest.AddGrants(t, c.rdb, other, 2*hour, crowdSize/4, 1)
		limitertest.AddGrants(t, c.rdb, other, hour/2, crowdSize/2, 1)
		damage(t, c.rdb, c.RateLimiter, "DEL config")
		client := limitertest.NewClient(t, c.rdb)
		both := []*rratelimiter.RateLimiter{
			byDefault(client, c.Name(), limitertest.Every(crowdSize, hour)), byDefault(client, name, limitertest.Every(crowdSize/2+70, hour)),
		}
		assert.False(t, tryAll(t, client, 71, both...))
		assert.True(t, tryAll(t, client, 70, both...))
	}},
	"set, renamed and deleted": {inUse, crowdSize, 0, func(t *testing.T, c crowd) {
		require.NoError(t, c.Rename(t.Context(), "elsewhere"))
		require.NoError(t, c.SetRate(t.Context(), limitertest.Every(1, hour)))
		require.NoError(t, c.Rename(t.Context(), "elsewhere"))
		require.NoError(t, limitertest.Second(c.Delete(t.Context())))
	}},
}

func TestBoundedWork(t *testing.T) {
	t.Parallel()
	for name, tt := range boundedTests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.StartRedis(t)
			c := crowd{rdb: server.Client(t, nil)}
			c.RateLimiter = limitertest.NewLimiter(t, c.rdb, limitertest.Every(tt.rate, hour))
			pileUp(t, c.rdb, c.RateLimiter, tt.members, tt.value)
			watch := monitor(t, server.Addr())
			tt.use(t, c)
			watch(t)
		})
	}
}

// Much that has run out, in many limiters, is a bounded piece of work a call.
func TestTryAcquireAllDoesBoundedWork(t *testing.T) {
	t.Parallel()
	const limiters, crowd = 16, 2000
	halves := map[time.Duration]int{2 * hour: crowd / 2, hour / 2: crowd / 2}
	for name, tt := range map[string]struct {
		members map[time.Duration]int
		value   int64
		version string
		permits int64
		want    bool
	}{
		"half has run out":                        {halves, 0, "4.7.0", 900, true},
		"half has run out, beside an old release": {halves, 10, "3.15.5", 5, true},
		"all in use":                              {map[time.Duration]int{hour / 2: crowd}, 0, "4.7.0", 100, false},
		"all in use, no value":                    {map[time.Duration]int{hour / 2: crowd}, -1, "4.7.0", 10, false},
		"dated in the future":                     {map[time.Duration]int{-hour: crowd}, 0, "4.7.0", 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.StartRedis(t)
			rdb := server.Client(t, nil)
			client := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(tt.version))
			f := limitertest.NewFamilyOf(t, client, slices.Repeat([]rratelimiter.Config{limitertest.Every(crowd, hour)}, limiters)...)
			for _, l := range f.Limiters {
				pileUp(t, rdb, l, tt.members, tt.value)
			}
			watch := monitor(t, server.Addr())
			assert.Equal(t, tt.want, f.Try(t, tt.permits))
			watch(t)
			if !tt.want {
				return
			}
			for _, l := range f.Limiters {
				assert.Equal(t, crowd/2-tt.permits, limitertest.Available(t, l)-tt.value)
			}
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

// TestBoundedWrites: to write a row takes a server several times as long as to
// read one, so a script call writes fewer than it may read.
func TestBoundedWrites(t *testing.T) {
	t.Parallel()
	const count = 3000
	older := []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1}
	type use func(ctx context.Context, client *rratelimiter.Client, l *rratelimiter.RateLimiter) (int64, error)
	migrate := func(ctx context.Context, client *rratelimiter.Client, l *rratelimiter.RateLimiter) (int64, error) {
		return client.Migrate(ctx, l.Name())
	}
	for name, tc := range map[string]struct {
		layouts []codec.Layout
		age     time.Duration
		use     use
		want    int64
		free    int64
	}{
		"older layouts": {older, hour / 2, migrate, count, 0},
		"an older layout now and then": {
			[]codec.Layout{codec.LayoutD2, codec.LayoutD2, codec.LayoutD2, codec.LayoutC}, hour / 2, migrate, count / 4, 0,
		},
		"dated in the future": {older, -hour, func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) (int64, error) {
			return l.AvailablePermits(ctx)
		}, 0, 0},
		"released": {older, hour / 2, func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) (int64, error) {
			return 0, l.Release(ctx, count-1)
		}, 0, count - 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.StartRedis(t)
			rdb := server.Client(t, nil)
			client := limitertest.NewClient(t, rdb)
			l := client.RateLimiter(redistest.Name(t))
			limitertest.MustTrySetRate(t, l, limitertest.Every(count, hour))
			pileUp(t, rdb, l, nil, 0)
			now := limitertest.ServerNow(t, rdb)
			rows := make([]redis.Z, count)
			for i := range rows {
				score := now - tc.age.Milliseconds() + int64(i/10)
				rows[i] = redis.Z{Score: float64(score), Member: limitertest.NewMember(t, tc.layouts[i%len(tc.layouts)], 1)}
			}
			require.NoError(t, rdb.ZAdd(t.Context(), limitertest.KeysOf(l).Permits, rows...).Err())

			calls := redistest.ScriptCalls(t, server.Addr())
			got, err := tc.use(t.Context(), client, l)
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
			for _, commands := range calls() {
				require.LessOrEqual(t, written(commands), 130, "rows that one script call wrote")
			}
			assert.Equal(t, tc.free, limitertest.Available(t, l))
			assert.Equal(t, count-tc.free, limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits))
		})
	}
}

// written returns how many rows of sorted sets commands write.
func written(commands [][]string) (rows int) {
	for _, args := range commands {
		switch args[0] {
		case "zadd":
			rows += (len(args) - 2) / 2
		case "zrem":
			rows += len(args) - 2
		}
	}
	return rows
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
