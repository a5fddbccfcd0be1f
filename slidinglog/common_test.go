package slidinglog_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

func TestLimiter(t *testing.T) {
	t.Parallel()
	limittest.Run(t, limittest.Kind{
		New: func(rdb redis.UniversalClient, permits int64, window time.Duration) limittest.Limiter {
			return slidinglog.New(rdb, slidinglog.Config{Limit: permits, Window: window})
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

// play has two programs share a log: one with this package, one with the
// articles' script. With a hash of thresholds, these change on the way.
func play(withHash bool) func(*testing.T, limittest.History) func() string {
	return func(t *testing.T, h limittest.History) func() (mismatch string) {
		usual, hash := 1+h.Draw.Int64N(10), ""
		if withHash {
			hash = redistest.Name(t)
		}
		m := &log{threshold: usual, length: h.Span(10)}
		l := slidinglog.New(h.Redis, slidinglog.Config{Limit: usual, Window: m.length, Thresholds: hash})
		article := articles.SlidingLog{
			Redis: h.Redis, Key: h.Key, Threshold: usual, Seconds: int64(m.length / time.Second), Thresholds: hash, Now: h.Now,
		}
		return func() string {
			h.MayPause(m.length)
			if withHash && h.Draw.IntN(8) == 0 {
				changeThreshold(t, h, l, hash, &m.threshold, usual)
			}
			now := h.Passed()
			if h.Draw.IntN(2) == 0 {
				return h.Theirs(t, article.Take, m.article(now))
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
	known, err := l.Threshold(ctx, h.Key)
	require.NoError(t, err)
	require.Equal(t, *threshold, known)
}

func TestTurnsWithTheArticles(t *testing.T) {
	t.Parallel()
	for name, thresholds := range map[string]bool{"one limit": false, "thresholds": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limittest.Turns{
				Limiter: "slidinglog, " + name, Keys: func(key string) []string { return []string{key} }, Play: play(thresholds),
			}.Take(t)
		})
	}
}
