package slidinglog_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

const crowd = 100_000

// No call does more than a bounded piece of work, however much others have left
// in the log.
func TestBoundedWork(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	server := redistest.StartRedis(t)
	rdb := server.Client(t, nil)
	for name, tc := range map[string]struct {
		rows map[time.Duration]int // by age
		use  func(t *testing.T, rdb *redis.Client, l *slidinglog.Limiter, log string)
	}{
		"all has run out": {map[time.Duration]int{2 * hour: crowd}, func(t *testing.T, rdb *redis.Client, l *slidinglog.Limiter, log string) {
			assert.Equal(t, int64(crowd-1), limittest.Take(t, l, log, 1).Remaining)
			assert.EqualValues(t, 1, rdb.ZCard(t.Context(), log).Val())
		}},
		"half has run out": {map[time.Duration]int{2 * hour: crowd / 2, hour / 2: crowd / 2}, func(t *testing.T, rdb *redis.Client, l *slidinglog.Limiter, log string) {
			assert.Equal(t, int64(crowd/2-1), limittest.Take(t, l, log, 1).Remaining)
			before := rdb.ZCard(t.Context(), log).Val()
			for i := range int64(20) {
				d := limittest.Take(t, l, log, slidinglog.MaxPermits)
				assert.Equal(t, crowd/2-1-(i+1)*slidinglog.MaxPermits, d.Remaining)
				assert.InDelta(t, hour, d.ResetAfter, float64(time.Minute))
			}
			assert.Less(t, rdb.ZCard(t.Context(), log).Val(), before, "it shrinks faster than it grows")
		}},
		"all in use": {map[time.Duration]int{hour / 2: crowd}, func(t *testing.T, _ *redis.Client, l *slidinglog.Limiter, log string) {
			for _, n := range []int64{1, slidinglog.MaxPermits} {
				d := limittest.Take(t, l, log, n)
				assert.False(t, d.Granted)
				assert.Zero(t, d.Remaining)
				assert.InDelta(t, hour/2, d.RetryAfter, float64(time.Minute))
				assert.InDelta(t, hour/2, d.ResetAfter, float64(time.Minute))
			}
		}},
		"dated in the future, refused": {map[time.Duration]int{-2 * hour: crowd}, func(t *testing.T, rdb *redis.Client, l *slidinglog.Limiter, log string) {
			d := limittest.Take(t, l, log, 1)
			assert.False(t, d.Granted)
			assert.LessOrEqual(t, d.RetryAfter, hour)
			assert.LessOrEqual(t, d.ResetAfter, hour)
			requireNoneAhead(t, rdb, log)
		}},
		"dated in the future, granted": {map[time.Duration]int{-2 * hour: crowd / 2}, func(t *testing.T, rdb *redis.Client, l *slidinglog.Limiter, log string) {
			d := limittest.Take(t, l, log, slidinglog.MaxPermits)
			assert.True(t, d.Granted)
			assert.Equal(t, int64(crowd/2-slidinglog.MaxPermits), d.Remaining)
			assert.LessOrEqual(t, d.ResetAfter, hour)
			requireNoneAhead(t, rdb, log)
		}},
		"given back": {nil, func(t *testing.T, rdb *redis.Client, l *slidinglog.Limiter, log string) {
			_, giveBack, err := l.TakeReturnable(t.Context(), log, slidinglog.MaxPermits)
			require.NoError(t, err)
			require.NoError(t, giveBack(t.Context()))
			assert.Zero(t, rdb.ZCard(t.Context(), log).Val())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			log := redistest.Name(t)
			for age, count := range tc.rows {
				fill(t, rdb, log, time.Now().Add(-age), count)
			}
			watch := monitor(t, server.Addr())
			tc.use(t, rdb, slidinglog.New(rdb, slidinglog.Config{Limit: crowd, Window: hour}), log)
			watch(t)
		})
	}
}

// requireNoneAhead checks that no row is dated ahead, and that the log has gone in
// an hour.
func requireNoneAhead(t *testing.T, rdb *redis.Client, log string) {
	t.Helper()
	newest := rdb.ZRevRangeWithScores(t.Context(), log, 0, 0).Val()
	require.Len(t, newest, 1)
	assert.LessOrEqual(t, int64(newest[0].Score), rdb.Time(t.Context()).Val().UnixMilli())
	assert.LessOrEqual(t, rdb.PTTL(t.Context(), log).Val(), time.Hour)
}

// fill adds rows to a log as the articles' script does, in steps for which no server
// counts as busy.
func fill(t *testing.T, rdb *redis.Client, log string, when time.Time, count int) {
	t.Helper()
	for first := 1; first <= count; first += 1000 {
		require.NoError(t, rdb.Eval(t.Context(), `
			local rows = {}
			for i = tonumber(ARGV[2]), tonumber(ARGV[3]) do
				rows[#rows + 1] = ARGV[1]
				rows[#rows + 1] = ARGV[1] .. '-' .. i
			end
			return redis.call('ZADD', KEYS[1], unpack(rows))`,
			[]string{log}, when.UnixMilli(), first, min(count, first+999)).Err())
	}
}

// monitor notes all that a server does. The function it returns checks that no
// script call did more than a bounded piece of work.
func monitor(t *testing.T, addr string) func(t *testing.T) {
	t.Helper()
	calls := redistest.ScriptCalls(t, addr)
	return func(t *testing.T) {
		t.Helper()
		all := 0
		for _, commands := range calls() {
			rows := 0
			for _, args := range commands {
				rows += touched(args)
			}
			all += len(commands)
			require.LessOrEqual(t, len(commands), 100, "commands of one script call")
			require.LessOrEqual(t, rows, 2500, "rows that one script call touched")
		}
		require.Positive(t, all)
	}
}

// touched returns how many rows a command may touch.
func touched(args []string) int {
	switch args[0] {
	case "time", "zcount", "zcard", "zscore", "pttl", "pexpire", "unlink":
		return 0
	case "zadd", "zrem":
		return len(args) / 2
	case "zrange", "zremrangebyrank":
		from, fromErr := strconv.Atoi(args[2])
		to, toErr := strconv.Atoi(args[3])
		if fromErr == nil && toErr == nil && (from < 0) == (to < 0) && to >= from {
			return to - from + 1
		}
	}
	return crowd
}
