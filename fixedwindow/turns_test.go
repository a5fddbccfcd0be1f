package fixedwindow_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// window is the rule of a fixed window that three programs share.
type window struct {
	limit  int64
	length time.Duration

	count int64
	end   time.Duration // 0: none has begun
}

func (w *window) at(now time.Duration) {
	if now >= w.end {
		w.count, w.end = 0, 0
	}
}

func (w *window) add(now time.Duration, n int64) {
	if w.count += n; w.end == 0 {
		w.end = now + w.length
	}
}

// take is what this package answers.
func (w *window) take(now time.Duration, n int64) limit.Decision {
	w.at(now)
	d := limit.Decision{Limit: w.limit, Granted: w.count+n <= w.limit}
	if d.Granted {
		w.add(now, n)
	} else {
		d.RetryAfter = w.end - now
	}
	d.Remaining, d.ResetAfter = max(0, w.limit-w.count), w.end-now
	return d
}

// fixed is what the articles' fixed window answers.
func (w *window) fixed(now time.Duration) int64 {
	if w.at(now); w.count >= w.limit {
		return 0
	}
	w.add(now, 1)
	return 1
}

// counter is what the articles' counter answers.
func (w *window) counter(now time.Duration) int64 {
	w.at(now)
	w.add(now, 1)
	if w.count > w.limit {
		return -1
	}
	return w.count
}

// play has three programs share a key: one with this package, one with the
// articles' fixed window and one with their counter.
func play(t *testing.T, rdb redis.UniversalClient, clock limittest.Clock, draw *rand.Rand, key string, unit time.Duration) (requests int, mismatch string) {
	w := &window{limit: 1 + draw.Int64N(12), length: time.Duration(1+draw.IntN(10)) * unit}
	l := fixedwindow.New(rdb, fixedwindow.Config{Limit: w.limit, Window: w.length})
	seconds := int64(w.length / time.Second)
	fixed := articles.FixedWindow{Redis: rdb, Key: key, Limit: w.limit, Seconds: seconds}
	counter := articles.Counter{Redis: rdb, Key: key, Limit: w.limit, Seconds: seconds}
	for requests = 1; requests <= 80; requests++ {
		if draw.IntN(3) == 0 {
			clock.Pause(limittest.Pause(draw, w.length, unit))
		}
		if clock.Passed() == w.end {
			// Redis keeps a key for this very millisecond, miniredis does not.
			clock.Pause(time.Millisecond)
		}
		now := clock.Passed()
		theirs := func(take func(context.Context) (int64, error), want int64) {
			if got, err := take(t.Context()); err != nil || got != want {
				mismatch = limittest.Mismatch("theirs", now, []any{got, err}, want)
			}
		}
		switch draw.IntN(4) {
		case 0:
			theirs(limittest.Either(draw, fixed.Take, fixed.Eval), w.fixed(now))
		case 1:
			theirs(limittest.Either(draw, counter.Take, counter.Eval), w.counter(now))
		default:
			n := 1 + draw.Int64N(min(4, w.limit))
			want := w.take(now, n)
			if got, err := l.Take(t.Context(), key, n); err != nil || !clock.Same(got, want) {
				mismatch = limittest.Mismatch("ours", now, []any{got, err}, want)
			}
		}
		if mismatch != "" {
			break
		}
	}
	return requests, mismatch
}

func TestTurnsWithTheArticles(t *testing.T) {
	t.Parallel()
	t.Run("virtual time", func(t *testing.T) {
		t.Parallel()
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			limittest.TakeTurns(t, "fixedwindow", func(t *testing.T, draw *rand.Rand, key string) (int, string) {
				return play(t, rdb, limittest.NewBubble(), draw, key, time.Second)
			})
		})
	})
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		limittest.TakeTurns(t, "fixedwindow", func(t *testing.T, draw *rand.Rand, key string) (int, string) {
			return play(t, rdb, limittest.NewAged(t, rdb, key), draw, key, time.Minute)
		})
	})
}

// At the same time, too, the three grant the limit and no more.
func TestTogetherWithTheArticles(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		const most = 90
		key := limittest.Key(t)
		fixed := articles.FixedWindow{Redis: rdb, Key: key, Limit: most, Seconds: 3600}
		counter := articles.Counter{Redis: rdb, Key: key, Limit: most, Seconds: 3600}
		l := fixedwindow.New(rdb, fixedwindow.Config{Limit: most, Window: time.Hour})
		assert.EqualValues(t, most, limittest.Together(t, l, key, fixed.Eval, counter.Eval))
	})
}
