package fixedwindow_test

import (
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestLimiter(t *testing.T) {
	t.Parallel()
	limittest.Run(t, limittest.Kind{
		New: func(client *rratelimiter.Client, permits int64, window time.Duration, opts ...rratelimiter.LimiterOption) limittest.Limiter {
			return fixedwindow.New(client, fixedwindow.Config{Limit: permits, Window: window}, opts...)
		},
		Keys:     func(key string) []string { return []string{key} },
		Type:     "string",
		Corrupt:  []string{"", "abc", "-1", "1.5", "1e3", " 3", "3 ", "9007199254740992", "99999999999999999999", "0x1", "\x00"},
		Shortest: []time.Duration{time.Millisecond, 3 * time.Millisecond, 250 * time.Millisecond, 1750 * time.Millisecond},
		Longest:  math.MaxInt64 * time.Nanosecond / 1e6 * 1e6,
		Most:     fixedwindow.MaxLimit,
		Limit:    "limit",
		Window:   "window",
		AtEdge:   19,
		Articles: func(rdb redis.Cmdable, key string, permits int64) []limittest.Rule {
			return []limittest.Rule{
				articles.FixedWindow{Redis: rdb, Key: key, Limit: permits, Seconds: 3600}.Eval,
				articles.Counter{Redis: rdb, Key: key, Limit: permits, Seconds: 3600}.Eval,
			}
		},
	})
}

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

// play lets three programs share a key: one with this package, one with the
// articles' fixed window and one with their counter.
func play(t *testing.T, h limittest.History) func() (mismatch string) {
	w := &window{limit: 1 + h.Draw.Int64N(12), length: h.Span(10)}
	l := fixedwindow.New(limitertest.OpenClient(h.Redis), fixedwindow.Config{Limit: w.limit, Window: w.length})
	seconds := int64(w.length / time.Second)
	fixed := articles.FixedWindow{Redis: h.Redis, Key: h.Key, Limit: w.limit, Seconds: seconds}
	counter := articles.Counter{Redis: h.Redis, Key: h.Key, Limit: w.limit, Seconds: seconds}
	return func() string {
		h.MayPause(w.length)
		if h.Passed() == w.end {
			// Redis keeps a key for this very millisecond, miniredis does not.
			h.Pause(time.Millisecond)
		}
		now := h.Passed()
		switch h.Draw.IntN(4) {
		case 0:
			return h.Theirs(t, fixed.Eval, w.fixed(now))
		case 1:
			return h.Theirs(t, counter.Eval, w.counter(now))
		}
		n := 1 + h.Draw.Int64N(min(4, w.limit))
		return h.Ours(t, l, n, w.take(now, n), nil)
	}
}

func TestTurnsWithTheArticles(t *testing.T) {
	t.Parallel()
	limittest.Turns{Limiter: "fixedwindow", Keys: func(key string) []string { return []string{key} }, Play: play}.Take(t)
}

// The tests of this file are each named after something that the articles'
// scripts do wrong.

func tenAMinute(rdb redistest.Client) *fixedwindow.Limiter {
	return fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 10, Window: time.Minute})
}

// A value written by hand, or whose writer crashed before EXPIRE, such as
// a counter's, refuses for ever.
func TestFaultValueWithoutTTL(t *testing.T) {
	t.Parallel()
	type row struct {
		stored  string
		granted bool
		left    int64
	}
	limitertest.Each(t, map[string]row{
		"one taken":       {"1", true, 8},
		"room left":       {"4", true, 5},
		"full":            {"10", false, 0},
		"above the limit": {"5000", false, 0},
		"nothing taken":   {"0", true, 9},
	}, func(t *testing.T, tc row) {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			l := tenAMinute(rdb)
			require.NoError(t, rdb.Set(t.Context(), "key", tc.stored, 0).Err())
			d := limittest.Take(t, l, "key", 1)
			assert.Equal(t, tc.granted, d.Granted)
			assert.Equal(t, tc.left, d.Remaining)
			assert.Equal(t, time.Minute, d.ResetAfter)
			assert.Equal(t, time.Minute, rdb.PTTL(t.Context(), "key").Val())
			time.Sleep(time.Minute)
			assert.Equal(t, 10, limittest.Grants(t, l, "key", 12))
		})
	})
}

// The counter counts what it refuses, so that the count has no bound.
func TestFaultCountGrowsWhileRefused(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l, ctx := tenAMinute(rdb), t.Context()
		assert.Equal(t, 10, limittest.Grants(t, l, "key", 100))
		assert.Equal(t, "10", rdb.Get(ctx, "key").Val())
		assert.False(t, limittest.Take(t, l, "key", 7).Granted)
		assert.Equal(t, "10", rdb.Get(ctx, "key").Val())

		// Theirs has gone beyond the limit: full, until the window ends.
		counter := articles.Counter{Redis: rdb, Key: "key", Limit: 10, Seconds: 60}
		for range 50 {
			answer, err := counter.Eval(ctx)
			require.NoError(t, err)
			require.EqualValues(t, -1, answer)
		}
		time.Sleep(20 * time.Second)
		assert.Equal(t, limit.Decision{Limit: 10, RetryAfter: 40 * time.Second, ResetAfter: 40 * time.Second},
			limittest.Take(t, l, "key", 1))
		time.Sleep(40 * time.Second)
		assert.Equal(t, 10, limittest.Grants(t, l, "key", 12))
	})
}

// A window belongs to those who opened it: its end stays where it is, unless it is further
// away than a window of ours can end. By a clock that has gone back it may be by any time.
func TestWindowOfAnotherLength(t *testing.T) {
	t.Parallel()
	for left, want := range map[time.Duration]time.Duration{
		30 * time.Second: 30 * time.Second,
		time.Minute:      time.Minute,
		90 * time.Second: time.Minute,
		time.Hour:        time.Minute,
	} {
		for name, count := range map[string]int{"granted": 9, "refused": 10} {
			t.Run(name+" "+left.String(), func(t *testing.T) {
				t.Parallel()
				redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
					require.NoError(t, rdb.Set(t.Context(), "key", count, left).Err())
					l := tenAMinute(rdb)
					d := limittest.Take(t, l, "key", 1)
					assert.Equal(t, count < 10, d.Granted)
					assert.Equal(t, want, d.ResetAfter)
					assert.Equal(t, want, rdb.PTTL(t.Context(), "key").Val())
					time.Sleep(want)
					assert.Equal(t, 10, limittest.Grants(t, l, "key", 12))
				})
			})
		}
	}
}
