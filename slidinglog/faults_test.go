package slidinglog_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// The tests of this file are each named after something that the articles' scripts do wrong.

func threeAMinute(rdb redistest.Client) *slidinglog.Limiter {
	return slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: 3, Window: time.Minute})
}

// A log that one variant of the script writes stays for ever.
func TestFaultNoTTL(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, map[string]int{"granted": 2, "refused": 3, "refused, above the limit": 5}, func(t *testing.T, rdb redistest.Client, rows int) {
		l, ctx := threeAMinute(rdb), t.Context()
		for range rows {
			row := redis.Z{Score: float64(time.Now().UnixMilli()), Member: time.Now().String()}
			require.NoError(t, rdb.ZAdd(ctx, "key", row).Err())
			time.Sleep(time.Second)
		}
		require.Equal(t, time.Duration(-1), rdb.PTTL(ctx, "key").Val())
		assert.Equal(t, rows < 3, limittest.Take(t, l, "key", 1).Granted)
		assert.Equal(t, time.Minute, rdb.PTTL(ctx, "key").Val())
		time.Sleep(time.Second)
		assert.False(t, limittest.Take(t, l, "key", 1).Granted)
		assert.Equal(t, 59*time.Second, rdb.PTTL(ctx, "key").Val(), "a refusal does not put the end off")
		time.Sleep(time.Minute + time.Millisecond)
		assert.Zero(t, rdb.Exists(ctx, "key").Val())
	})
}

// Rows that a caller with a fast clock wrote are in use, for a window from the first call on that finds them.
func TestTake_RowsOfFastClockCountForAWindow(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, limitertest.Rows(time.Second, 30*time.Second, time.Hour), func(t *testing.T, rdb redistest.Client, ahead time.Duration) {
		l := threeAMinute(rdb)
		article := articles.SlidingLog{Redis: rdb, Key: "key", Threshold: 3, Seconds: 60, Now: func() time.Time { return time.Now().Add(ahead) }}
		for range 3 {
			require.EqualValues(t, 1, limitertest.Must(article.Eval(t.Context()))(t))
		}
		time.Sleep(time.Millisecond)
		d := limittest.Take(t, l, "key", 1)
		assert.False(t, d.Granted)
		assert.Zero(t, d.Remaining)
		assert.Equal(t, time.Minute, d.RetryAfter, "they count from now on")
		assert.Equal(t, time.Minute, d.ResetAfter)
		time.Sleep(d.RetryAfter)
		assert.True(t, limittest.Take(t, l, "key", 3).Granted)
	})
}

func TestTake_RefusesTooManyPermits(t *testing.T) {
	t.Parallel()
	l := threeAMinute(limittest.Unreachable(t))
	limittest.RequireRefused(t, l, "orders", slidinglog.MaxPermits+1, limit.ErrInvalidPermits, `"orders"`)
}

// However often the clock goes back, no span of a window's length grants more than the limit, and a window after the first call
// by the new time all that was granted before is free.
func TestTake_ClockStepsBackGrantNothing(t *testing.T) {
	t.Parallel()
	redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) {
		const limit, window = 10, 6 * time.Second
		l, draw := slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: limit, Window: window}), rand.New(rand.NewPCG(6, 8))
		var granted []time.Time
		var stepped time.Time
		refused := 0
		for range 500 {
			time.Sleep(time.Duration(draw.Int64N(int64(window / 3))).Truncate(time.Millisecond))
			if draw.IntN(15) == 0 {
				step(-time.Duration(draw.Int64N(int64(2 * window))).Truncate(time.Millisecond))
				stepped = time.Now()
			}
			now, n := time.Now(), 1+draw.Int64N(4)
			granted = slices.DeleteFunc(granted, func(when time.Time) bool { return now.Sub(when) >= window })
			if limittest.Take(t, l, "key", n).Granted {
				granted = append(granted, slices.Repeat([]time.Time{now}, int(n))...)
				require.LessOrEqual(t, len(granted), limit)
				continue
			}
			if now.Sub(stepped) >= window {
				require.Greater(t, len(granted)+int(n), limit, "permits got lost")
			}
			refused++
		}
		assert.Greater(t, refused, 50)
	})
}

// rowsAhead adds rows to a log that are dated an hour ahead, as a clock leaves them that has gone back since.
func rowsAhead(t *testing.T, rdb redistest.Client, log string, count int) {
	t.Helper()
	fill(t, rdb, log, rdb.Time(t.Context()).Val().Add(time.Hour), count)
	require.NoError(t, rdb.Expire(t.Context(), log, time.Hour+time.Minute).Err())
}

// More rows than one call sets right are set right by one Take.
func TestTake_SetsManyFutureRowsRight(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, limitertest.Rows(1, 255, 256, 257, 512, 3000), func(t *testing.T, rdb redistest.Client, count int) {
		ctx := t.Context()
		rowsAhead(t, rdb, "key", count)
		l := slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: 4000, Window: time.Minute})
		n := 1 + count%3 // one permit has a way of its own
		d := limittest.Take(t, l, "key", int64(n))
		assert.True(t, d.Granted)
		assert.EqualValues(t, 4000-count-n, d.Remaining)
		assert.Equal(t, time.Minute, d.ResetAfter)
		assert.Equal(t, time.Minute, rdb.PTTL(ctx, "key").Val())
		assert.EqualValues(t, count+n, rdb.ZCard(ctx, "key").Val())
		time.Sleep(30 * time.Second)
		limittest.Take(t, l, "key", 1)
		time.Sleep(30*time.Second - time.Millisecond)
		assert.EqualValues(t, 4000-count-n-2, limittest.Take(t, l, "key", 1).Remaining)
		time.Sleep(time.Millisecond)
		assert.EqualValues(t, 3997, limittest.Take(t, l, "key", 1).Remaining, "they count for a window")
	})
}

// An answer that is lost on the way takes nothing twice.
func TestTake_LostAnswerWhileRowsAreSetRight(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, limitertest.Rows(0, 1, 2, 3, 4), func(t *testing.T, lost int) {
		direct, m := redistest.Mini(t)
		proxy := redistest.MiniProxy(t, m)
		l := slidinglog.New(limitertest.OpenClient(proxy.Client(t, nil)), slidinglog.Config{Limit: 2000, Window: time.Minute})
		limittest.Take(t, l, "warm", 1)
		rowsAhead(t, direct, "key", 1000)
		proxy.OnCommand(redistest.Nth(1+lost, "evalsha", redistest.DropAnswer))
		d := limittest.Take(t, l, "key", 3)
		assert.True(t, d.Granted)
		assert.Equal(t, int64(997), d.Remaining)
		assert.EqualValues(t, 1003, direct.ZCard(t.Context(), "key").Val())
		proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.DropAnswer))
		assert.Equal(t, int64(994), limitertest.Must(l.Peek(t.Context(), "key", 3))(t).Remaining)
		assert.EqualValues(t, 1003, direct.ZCard(t.Context(), "key").Val(), "a look takes nothing")
		proxy.Settle(t)
	})
}

const crowd = 100_000

// A crowded limiter has a log with many rows.
type crowded struct {
	*slidinglog.Limiter

	rdb redistest.Client
	log string
}

// No call does more than a bounded piece of work, however much others have left in the log.
func TestBoundedWork(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	server := redistest.StartRedis(t)
	rdb := server.Client(t, nil)
	for name, tc := range map[string]struct {
		rows map[time.Duration]int // by age
		use  func(t *testing.T, c crowded)
	}{
		"all has run out": {map[time.Duration]int{2 * hour: crowd}, func(t *testing.T, c crowded) {
			assert.Equal(t, int64(crowd-1), limittest.Take(t, c, c.log, 1).Remaining)
			assert.EqualValues(t, 1, c.rdb.ZCard(t.Context(), c.log).Val())
		}},
		"half has run out": {map[time.Duration]int{2 * hour: crowd / 2, hour / 2: crowd / 2}, func(t *testing.T, c crowded) {
			assert.Equal(t, int64(crowd/2-1), limittest.Take(t, c, c.log, 1).Remaining)
			before := c.rdb.ZCard(t.Context(), c.log).Val()
			for i := range int64(20) {
				d := limittest.Take(t, c, c.log, slidinglog.MaxPermits)
				assert.Equal(t, crowd/2-1-(i+1)*slidinglog.MaxPermits, d.Remaining)
				assert.InDelta(t, hour, d.ResetAfter, float64(time.Minute))
			}
			assert.Less(t, c.rdb.ZCard(t.Context(), c.log).Val(), before, "it shrinks faster than it grows")
		}},
		"all in use": {map[time.Duration]int{hour / 2: crowd}, func(t *testing.T, c crowded) {
			for _, n := range []int64{1, slidinglog.MaxPermits} {
				d := limittest.Take(t, c, c.log, n)
				assert.False(t, d.Granted)
				assert.Zero(t, d.Remaining)
				assert.InDelta(t, hour/2, d.RetryAfter, float64(time.Minute))
				assert.InDelta(t, hour/2, d.ResetAfter, float64(time.Minute))
			}
		}},
		"dated in the future, refused": {map[time.Duration]int{-2 * hour: crowd}, func(t *testing.T, c crowded) {
			d := limittest.Take(t, c, c.log, 1)
			assert.False(t, d.Granted)
			assert.LessOrEqual(t, d.RetryAfter, hour)
			assert.LessOrEqual(t, d.ResetAfter, hour)
			newest := c.rdb.ZRevRangeWithScores(t.Context(), c.log, 0, 0).Val()
			require.Len(t, newest, 1)
			assert.LessOrEqual(t, int64(newest[0].Score), c.rdb.Time(t.Context()).Val().UnixMilli(), "none is dated ahead any more")
			assert.LessOrEqual(t, c.rdb.PTTL(t.Context(), c.log).Val(), hour)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			log := redistest.Name(t)
			for age, count := range tc.rows {
				fill(t, rdb, log, time.Now().Add(-age), count)
			}
			watch := redistest.BoundScripts(t, server.Addr(), 100, 1300, 1000)
			tc.use(t, crowded{slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: crowd, Window: hour}), rdb, log})
			watch(t)
		})
	}
}

// fill adds rows to a log as the articles' script does, in steps for which no server counts as busy.
func fill(t *testing.T, rdb redistest.Client, log string, when time.Time, count int) {
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

func TestLimiter(t *testing.T) {
	t.Parallel()
	limittest.Run(t, limittest.Kind{
		New: func(client *rratelimiter.Client, permits int64, window time.Duration, opts ...rratelimiter.LimiterOption) limittest.Limiter {
			return slidinglog.New(client, slidinglog.Config{Limit: permits, Window: window}, opts...)
		},
		Keys:     func(key string) []string { return []string{key} },
		Type:     "zset",
		Once:     true,
		Shortest: []time.Duration{time.Millisecond, 3 * time.Millisecond, 250 * time.Millisecond, 1750 * time.Millisecond},
		Longest:  math.MaxInt64 * time.Nanosecond / 1e6 * 1e6,
		Most:     slidinglog.MaxLimit,
		Limit:    "limit",
		Window:   "window",
		AtEdge:   10,
		Articles: func(rdb redis.Cmdable, key string, permits int64) []limittest.Rule {
			return []limittest.Rule{articles.SlidingLog{Redis: rdb, Key: key, Threshold: permits, Seconds: 3600, Now: time.Now}.Eval}
		},
	})
}

// log is the rule of a sliding log that two programs share.
type log struct {
	threshold int64
	length    time.Duration
	granted   []time.Duration // when, each permit
}

func (l *log) at(now time.Duration) {
	l.granted = slices.DeleteFunc(l.granted, func(when time.Duration) bool { return when <= now-l.length })
}

func (l *log) free() int64 { return l.threshold - int64(len(l.granted)) }

// take is what this package answers.
func (l *log) take(now time.Duration, n int64) (limit.Decision, error) {
	l.at(now)
	d := limit.Decision{Limit: l.threshold, Granted: n <= l.free()}
	switch {
	case l.threshold == 0:
		d.RetryAfter = l.length
	case n > l.threshold:
		return d, limit.ErrPermitsExceedRate
	case d.Granted:
		l.granted = append(l.granted, slices.Repeat([]time.Duration{now}, int(n))...)
	default:
		d.RetryAfter = l.granted[n-l.free()-1] + l.length - now
	}
	d.Remaining = max(0, l.free())
	if last := len(l.granted) - 1; last >= 0 {
		d.ResetAfter = l.granted[last] + l.length - now
	}
	return d, nil
}

// article is what the articles' sliding log answers.
func (l *log) article(now time.Duration) int64 {
	if l.at(now); l.free() <= 0 {
		return 0
	}
	l.granted = append(l.granted, now)
	return 1
}

// play lets two programs share a log: one with this package, one with the
// articles' script. With a hash of thresholds, these change on the way.
func play(withHash bool) func(*testing.T, limittest.History) func() string {
	return func(t *testing.T, h limittest.History) func() (mismatch string) {
		usual, hash := 1+h.Draw.Int64N(10), ""
		if withHash {
			hash = redistest.Name(t)
		}
		m := &log{threshold: usual, length: h.Span(10)}
		l := slidinglog.New(limitertest.OpenClient(h.Redis), slidinglog.Config{Limit: usual, Window: m.length, Thresholds: hash})
		article := articles.SlidingLog{
			Redis: h.Redis, Key: h.Key, Threshold: usual, Seconds: int64(m.length / time.Second), Thresholds: hash, Now: time.Now,
		}
		return func() string {
			h.MayPause(m.length)
			if withHash && h.Draw.IntN(8) == 0 {
				changeThreshold(t, h, l, hash, &m.threshold, usual)
			}
			now := h.Passed()
			if h.Draw.IntN(2) == 0 {
				return h.Theirs(t, article.Eval, m.article(now))
			}
			n := 1 + h.Draw.Int64N(4)
			want, wantErr := m.take(now, n)
			return h.Ours(t, l, n, want, wantErr)
		}
	}
}

// changeThreshold changes the key's threshold in one of the ways there are.
func changeThreshold(t *testing.T, h limittest.History, l *slidinglog.Limiter, hash string, threshold *int64, usual int64) {
	t.Helper()
	ctx := t.Context()
	*threshold = h.Draw.Int64N(12)
	switch h.Draw.IntN(4) {
	case 0:
		require.NoError(t, h.Redis.HSet(ctx, hash, h.Key, *threshold).Err())
	case 1:
		require.NoError(t, l.SetThreshold(ctx, h.Key, *threshold))
	case 2:
		require.NoError(t, l.ResetThreshold(ctx, h.Key))
		*threshold = usual
	case 3:
		require.NoError(t, h.Redis.HDel(ctx, hash, h.Key).Err())
		*threshold = usual
	}
	require.Equal(t, *threshold, limitertest.Must(l.Threshold(ctx, h.Key))(t))
}

func TestTurnsWithTheArticles(t *testing.T) {
	t.Parallel()
	limitertest.Named(t, map[string]bool{"one limit": false, "thresholds": true}, func(t *testing.T, name string, thresholds bool) {
		limittest.Turns{Limiter: "slidinglog, " + name, Play: play(thresholds)}.Take(t)
	})
}
