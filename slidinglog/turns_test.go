package slidinglog_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

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
// articles' script. Where thresholds names a hash, it changes on the way.
func play(t *testing.T, rdb redis.UniversalClient, clock limittest.Clock, draw *rand.Rand, key, thresholds string, unit time.Duration) (requests int, mismatch string) {
	ctx, usual := t.Context(), 1+draw.Int64N(10)
	m := &log{threshold: usual, length: time.Duration(1+draw.IntN(10)) * unit}
	l := slidinglog.New(rdb, slidinglog.Config{Limit: usual, Window: m.length, Thresholds: thresholds})
	article := articles.SlidingLog{
		Redis: rdb, Key: key, Threshold: usual, Seconds: int64(m.length / time.Second), Thresholds: thresholds, Now: clock.Now,
	}
	for requests = 1; requests <= 80; requests++ {
		if draw.IntN(3) == 0 {
			clock.Pause(limittest.Pause(draw, m.length, unit))
		}
		if thresholds != "" && draw.IntN(8) == 0 {
			changeThreshold(t, draw, rdb, l, key, thresholds, &m.threshold, usual)
		}
		now := clock.Passed()
		if draw.IntN(2) == 0 {
			want := m.article(now)
			if got, err := article.Take(ctx); err != nil || got != want {
				return requests, limittest.Mismatch("theirs", now, []any{got, err}, want)
			}
			continue
		}
		n := 1 + draw.Int64N(4)
		want, wantErr := m.take(now, n)
		got, err := l.Take(ctx, key, n)
		if !errors.Is(err, wantErr) || err == nil && !clock.Same(got, want) {
			return requests, limittest.Mismatch("ours", now, []any{got, err}, want)
		}
	}
	return requests, ""
}

// changeThreshold changes the key's threshold in one of the ways there are.
func changeThreshold(t *testing.T, draw *rand.Rand, rdb redis.UniversalClient, l *slidinglog.Limiter, key, thresholds string, threshold *int64, usual int64) {
	t.Helper()
	ctx := t.Context()
	*threshold = draw.Int64N(12)
	switch draw.IntN(4) {
	case 0:
		require.NoError(t, rdb.HSet(ctx, thresholds, key, *threshold).Err())
	case 1:
		require.NoError(t, l.SetThreshold(ctx, key, *threshold))
	case 2:
		require.NoError(t, l.ResetThreshold(ctx, key))
		*threshold = usual
	case 3:
		require.NoError(t, rdb.HDel(ctx, thresholds, key).Err())
		*threshold = usual
	}
	known, err := l.Threshold(ctx, key)
	require.NoError(t, err)
	require.Equal(t, *threshold, known)
}

func TestTurnsWithTheArticles(t *testing.T) {
	t.Parallel()
	for name, withHash := range map[string]bool{"one limit": false, "thresholds": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			thresholds := func(t *testing.T) string {
				if withHash {
					return redistest.Name(t)
				}
				return ""
			}
			t.Run("virtual time", func(t *testing.T) {
				t.Parallel()
				redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
					hash := thresholds(t)
					limittest.TakeTurns(t, "slidinglog, "+name, func(t *testing.T, draw *rand.Rand, key string) (int, string) {
						return play(t, rdb, limittest.NewBubble(), draw, key, hash, time.Second)
					})
				})
			})
			redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
				hash := thresholds(t)
				limittest.TakeTurns(t, "slidinglog, "+name, func(t *testing.T, draw *rand.Rand, key string) (int, string) {
					return play(t, rdb, limittest.NewAged(t, rdb, key), draw, key, hash, time.Minute)
				})
			})
		})
	}
}

// At the same time, too, both grant the limit and no more.
func TestTogetherWithTheArticles(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		const most = 90
		key := limittest.Key(t)
		article := articles.SlidingLog{Redis: rdb, Key: key, Threshold: most, Seconds: 3600, Now: time.Now}
		l := slidinglog.New(rdb, slidinglog.Config{Limit: most, Window: time.Hour})
		assert.EqualValues(t, most, limittest.Together(t, l, key, article.Eval))
		assert.EqualValues(t, most, rdb.ZCard(t.Context(), key).Val())
	})
}
