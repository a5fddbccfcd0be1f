package bounded_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// crowd is a limiter on a server of its own whose set holds the members of a dozen script calls and more.
type crowd struct {
	*rratelimiter.RateLimiter

	rdb redistest.Client
}

const (
	crowdSize = 25_000
	hour      = time.Hour
	half      = crowdSize / 2
)

// A step is a call on a crowd, which checks what it answers.
type step func(t testing.TB, c crowd)

func isFree(permits int64) step {
	return func(t testing.TB, c crowd) { assert.Equal(t, permits, limitertest.Available(t, c.RateLimiter)) }
}

func takes(permits int64, want bool) step {
	return func(t testing.TB, c crowd) {
		require.Equal(t, want, limitertest.Try(t, c.RateLimiter, permits), "%d permits", permits)
	}
}

func releases(permits int64) step {
	return func(t testing.TB, c crowd) { require.NoError(t, c.Release(t.Context(), permits)) }
}

func keepsState(rate int64, interval time.Duration) step {
	return func(t testing.TB, c crowd) {
		require.NoError(t, c.SetRate(t.Context(), limitertest.Every(rate, interval), rratelimiter.KeepState()))
	}
}

func loses(commands string) step {
	return func(t testing.TB, c crowd) { limitertest.Damage(t, c.rdb, c.RateLimiter, commands) }
}

func hasRows(rows int64) step {
	return func(t testing.TB, c crowd) {
		assert.Equal(t, rows, c.rdb.ZCard(t.Context(), limitertest.KeysOf(c.RateLimiter).Permits).Val())
	}
}

// takeIsRefused checks what Take says of permits that come back after that long.
func takeIsRefused(permits int64, wait time.Duration) step {
	return func(t testing.TB, c crowd) {
		d := limitertest.Take(t, c.RateLimiter, permits)
		assert.False(t, d.Granted)
		assert.Greater(t, d.RetryAfter, wait-time.Minute)
		assert.LessOrEqual(t, d.RetryAfter, wait)
		assert.Greater(t, d.ResetAfter, wait-time.Minute)
		assert.LessOrEqual(t, d.ResetAfter, wait)
	}
}

// calls makes the calls of a script until it is done; its token becomes the argument at tokenAt.
func calls(script *lua.Script, tokenAt int, args func(member func(permits uint32) string) []any) step {
	return func(t testing.TB, c crowd) {
		args := args(func(permits uint32) string { return limitertest.NewMember(t, codec.LayoutD2, permits) })
		for {
			reply := limitertest.Must(c.rdb.Eval(t.Context(), script.Source, limitertest.KeysOf(c.RateLimiter).List(), args...).Result())(t)
			values, _ := reply.([]any)
			if len(values) < 2 || values[0] != "again" {
				return
			}
			args[tokenAt] = values[1]
		}
	}
}

// manyRequests are the arguments of one call for 4096 callers of 128 sizes.
func manyRequests(age string) func(member func(permits uint32) string) []any {
	return func(member func(permits uint32) string) []any {
		const sum = 32 * 128 * 129 / 2
		args := []any{member(sum), sum, "", "fa", age, "", 0}
		for i := range 128 {
			args = append(args, 1+i, 32)
		}
		return args
	}
}

type boundedTest struct {
	members map[time.Duration]int // by age
	rate    int64
	value   int64 // below 0: missing
	steps   []step
}

var (
	runOut = map[time.Duration]int{2 * hour: crowdSize}
	inUse  = map[time.Duration]int{hour / 2: crowdSize}
	halves = map[time.Duration]int{2 * hour: crowdSize / 2, hour / 2: crowdSize / 2}
	ahead  = map[time.Duration]int{-2 * hour: crowdSize}
	apart  = map[time.Duration]int{2 * hour: crowdSize / 2, -hour: crowdSize / 2}
)

var boundedTests = map[string]boundedTest{
	"all has run out": {runOut, crowdSize, 0, []step{takes(1, true), isFree(crowdSize - 1), hasRows(1)}},
	"all in use":      {inUse, crowdSize, 0, []step{takeIsRefused(1, hour/2), takeIsRefused(100, hour/2), isFree(0)}},
	"release of all":  {inUse, crowdSize, 0, []step{releases(crowdSize), isFree(crowdSize), hasRows(0)}},
	"release of some": {inUse, crowdSize, 0, []step{releases(1000), isFree(1000), func(t testing.TB, c crowd) {
		assert.EqualValues(t, crowdSize-1000, limitertest.InUse(t, c.rdb, limitertest.KeysOf(c.RateLimiter).Permits))
	}}},
	"half has run out": {halves, crowdSize, 0, []step{takes(1, true), isFree(half - 1), takes(half, false), takes(half-1, true)}},
	"no value": {inUse, crowdSize + 50, -1, []step{func(t testing.TB, c crowd) {
		assert.Equal(t, 50, limitertest.Grants(t, c.RateLimiter, 52))
	}, isFree(0)}},
	"no value, half run out": {halves, crowdSize, -1, []step{isFree(half)}},
	"dated in the future":    {ahead, crowdSize, 0, []step{takeIsRefused(1, hour), isFree(0)}},
	"half of each":           {apart, crowdSize, 0, []step{isFree(half), takes(half+1, false)}},
	"a rate kept with its state": {inUse, crowdSize, 0, []step{
		keepsState(crowdSize+70, hour), isFree(70),
		keepsState(crowdSize-70, hour), func(t testing.TB, c crowd) {
			value, _ := limitertest.StoredValue(t, c.rdb, limitertest.KeysOf(c.RateLimiter).Value)
			assert.EqualValues(t, -70, value)
		},
		keepsState(crowdSize, hour/4), isFree(crowdSize), // all has run out by the shorter interval
	}},
	"a rate kept if it was lost": {halves, crowdSize, 0, []step{loses("DEL config"), keepsState(half+70, hour), isFree(70)}},
	"a rate set if it was lost": {halves, crowdSize, 0, []step{loses("DEL config"), func(t testing.TB, c crowd) {
		limitertest.MustTrySetRate(t, c.RateLimiter, limitertest.Every(half+70, hour))
	}, isFree(70)}},
	"a default if the rate was lost": {halves, crowdSize, crowdSize, []step{loses("DEL config"), func(t testing.TB, c crowd) {
		l := limitertest.ByDefault(limitertest.NewClient(t, c.rdb), c.Name(), limitertest.Every(half+70, hour))
		limitertest.MustRefuse(t, l, 71)
		limitertest.MustAcquire(t, l, 70)
	}}},
	"defaults of two if the rates were lost": {halves, crowdSize, crowdSize, []step{loses("DEL config"), func(t testing.TB, c crowd) {
		client, name := limitertest.NewClient(t, c.rdb), limitertest.Besides(c.Name())
		both := []*rratelimiter.RateLimiter{
			limitertest.ByDefault(client, c.Name(), limitertest.Every(crowdSize, hour)), limitertest.ByDefault(client, name, limitertest.Every(half+70, hour)),
		}
		limitertest.PileUp(t, c.rdb, both[1], map[time.Duration]int{2 * hour: half / 2, hour / 2: half}, -1)
		assert.False(t, limitertest.TryAll(t, client, 71, both...))
		assert.True(t, limitertest.TryAll(t, client, 70, both...))
	}}},
	"a repeat that finds no attempt": {inUse, 2 * crowdSize, crowdSize, []step{calls(lua.Acquire, 5, func(member func(uint32) string) []any {
		return []any{member(1), 1, "", "", "18000000", ""}
	}), isFree(crowdSize - 1)}},
	"giving back what is not there": {inUse, 2 * crowdSize, crowdSize, []step{calls(lua.GiveBack, 4, func(member func(uint32) string) []any {
		return []any{member(1), 1, "", "18000000", "", "0123456789abcdef"}
	}), isFree(crowdSize)}},
	"thousands of requests":           {halves, crowdSize, 0, []step{calls(lua.Acquire, 5, manyRequests(""))}},
	"thousands of requests, repeated": {inUse, crowdSize, 0, []step{calls(lua.Acquire, 5, manyRequests("18000000"))}},
	"set, renamed and deleted": {inUse, crowdSize, 0, []step{func(t testing.TB, c crowd) {
		require.NoError(t, c.Rename(t.Context(), "elsewhere"))
		require.NoError(t, c.SetRate(t.Context(), limitertest.Every(1, hour)))
		require.NoError(t, c.Rename(t.Context(), "elsewhere"))
		require.NoError(t, limitertest.Second(c.Delete(t.Context())))
	}}},
}

// monitor checks that each script call does bounded work. Some of about 500 rows are asked for twice, and then removed.
func monitor(t *testing.T, server *redistest.Server) (check func(t testing.TB)) {
	t.Helper()
	return redistest.BoundScripts(t, server.Addr(), 1000, 1500, 2000)
}

func TestBoundedWork(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, boundedTests, func(t *testing.T, tt boundedTest) {
		server := redistest.StartRedis(t)
		rdb := server.Client(t, nil)
		c := crowd{limitertest.NewLimiter(t, rdb, limitertest.Every(tt.rate, hour)), rdb}
		limitertest.PileUp(t, rdb, c.RateLimiter, tt.members, tt.value)
		watch := monitor(t, server)
		for _, step := range tt.steps {
			step(t, c)
		}
		watch(t)
	})
}

// Much that has run out, in many limiters, is a bounded piece of work a call.
func TestTryAcquireAllDoesBoundedWork(t *testing.T) {
	t.Parallel()
	const limiters, crowd = 16, 2000
	type row struct {
		members map[time.Duration]int
		permits int64
		want    bool
	}
	limitertest.Each(t, map[string]row{
		"half has run out":    {map[time.Duration]int{2 * hour: crowd / 2, hour / 2: crowd / 2}, 900, true},
		"all in use":          {map[time.Duration]int{hour / 2: crowd}, 100, false},
		"dated in the future": {map[time.Duration]int{-hour: crowd}, 1, false},
	}, func(t *testing.T, row row) {
		server := redistest.StartRedis(t)
		rdb := server.Client(t, nil)
		client := limitertest.NewClient(t, rdb)
		f := limitertest.NewFamilyOf(t, client, slices.Repeat([]rratelimiter.Config{limitertest.Every(crowd, hour)}, limiters)...)
		for _, l := range f.Limiters {
			limitertest.PileUp(t, rdb, l, row.members, 0)
		}
		watch := monitor(t, server)
		assert.Equal(t, row.want, f.Try(t, row.permits))
		watch(t)
		if !row.want {
			return
		}
		for _, l := range f.Limiters {
			assert.Equal(t, crowd/2-row.permits, limitertest.Available(t, l))
		}
	})
}

// Writing a row takes several times as long as reading one, so a script call writes fewer.
func TestBoundedWrites(t *testing.T) {
	t.Parallel()
	const count = 3000
	older := []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1}
	type row struct {
		layouts []codec.Layout
		age     time.Duration
		use     func(ctx context.Context, l *rratelimiter.RateLimiter) (int64, error)
		want    int64
		free    int64
	}
	migrate := func(ctx context.Context, l *rratelimiter.RateLimiter) (int64, error) { return l.Migrate(ctx) }
	limitertest.Each(t, map[string]row{
		"older layouts": {older, hour / 2, migrate, count, 0},
		"an older layout now and then": {
			[]codec.Layout{codec.LayoutD2, codec.LayoutD2, codec.LayoutD2, codec.LayoutC}, hour / 2, migrate, count / 4, 0,
		},
		"dated in the future": {older, -hour, func(ctx context.Context, l *rratelimiter.RateLimiter) (int64, error) {
			return l.AvailablePermits(ctx)
		}, 0, 0},
		"released": {older, hour / 2, func(ctx context.Context, l *rratelimiter.RateLimiter) (int64, error) {
			return 0, l.Release(ctx, count-1)
		}, 0, count - 1},
	}, func(t *testing.T, row row) {
		server := redistest.StartRedis(t)
		rdb := server.Client(t, nil)
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(count, hour))
		limitertest.PileUp(t, rdb, l, nil, 0)
		now := limitertest.ServerNow(t, rdb)
		rows := make([]redis.Z, count)
		for i := range rows {
			score := now - row.age.Milliseconds() + int64(i/10)
			rows[i] = redis.Z{Score: float64(score), Member: limitertest.NewMember(t, row.layouts[i%len(row.layouts)], 1)}
		}
		require.NoError(t, rdb.ZAdd(t.Context(), limitertest.KeysOf(l).Permits, rows...).Err())
		calls := redistest.ScriptCalls(t, server.Addr())
		assert.Equal(t, row.want, limitertest.Must(row.use(t.Context(), l))(t))
		for _, commands := range calls() {
			written := 0
			for _, args := range commands {
				if args[0] == "zadd" || args[0] == "zrem" {
					written += redistest.Rows(args)
				}
			}
			require.LessOrEqual(t, written, 130, "rows that one script call wrote")
		}
		assert.Equal(t, row.free, limitertest.Available(t, l))
		assert.Equal(t, count-row.free, limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits))
	})
}

// PEXPIREAT in the past would free a large set in the foreground.
func TestExpireAt_PastMomentFreesInBackground(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	rdb := server.Client(t, nil)
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		l := limitertest.NewLimiter(t, rdb, rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour})
		limitertest.MustAcquire(t, l, 1)
		calls := redistest.ScriptCalls(t, server.Addr())
		assert.True(t, limitertest.Must(l.ExpireAt(t.Context(), time.Now().Add(-time.Minute)))(t))
		assert.Empty(t, limitertest.LimiterKeys(t, rdb, l.Name()))
		assert.False(t, limitertest.Must(l.ExpireAt(t.Context(), time.Now().Add(-time.Minute)))(t))
		for _, commands := range calls() {
			for _, args := range commands {
				of := len(args) > 1 && strings.Contains(args[1], l.Name())
				assert.False(t, of && args[0] == "pexpireat", args)
			}
		}
	})
}
