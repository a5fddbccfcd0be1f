package tokenbucket_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// bucket is the rule of a token bucket that two programs share.
type bucket struct {
	capacity, refill int64
	interval         time.Duration

	tokens int64
	last   time.Duration // the second of the last refill
}

// at refills the bucket. gone tells that Redis holds nothing of it: it starts
// full, which it must have been.
func (b *bucket) at(now time.Duration, gone bool) (ok bool) {
	if intervals := int64((now.Truncate(time.Second) - b.last) / b.interval); intervals > 0 {
		b.tokens = min(b.capacity, b.tokens+intervals*b.refill)
		b.last += time.Duration(intervals) * b.interval
	}
	if gone {
		b.last = now.Truncate(time.Second)
	}
	return !gone || b.tokens == b.capacity
}

// until returns how long it takes for so many tokens to come.
func (b *bucket) until(now time.Duration, tokens int64) time.Duration {
	if tokens <= 0 {
		return 0
	}
	return b.last + time.Duration((tokens+b.refill-1)/b.refill)*b.interval - now
}

// take is what this package answers.
func (b *bucket) take(now time.Duration, n int64) limit.Decision {
	d := limit.Decision{Limit: b.capacity, Granted: n <= b.tokens}
	if d.Granted {
		b.tokens -= n
	} else {
		d.RetryAfter = b.until(now, n-b.tokens)
	}
	d.Remaining, d.ResetAfter = b.tokens, b.until(now, b.capacity-b.tokens)
	return d
}

// article is what the articles' token bucket answers.
func (b *bucket) article(n int64) int64 {
	if n > b.tokens {
		return -1
	}
	b.tokens -= n
	return b.tokens
}

// play has two programs share a bucket: one with this package, one with the
// articles' script, by whose times to live a capacity that is no multiple of the
// refill would be exceeded.
func play(t *testing.T, h limittest.History) (requests int, mismatch string) {
	b := &bucket{refill: 1 + h.Draw.Int64N(4), interval: h.Span(4)}
	b.capacity = b.refill * (1 + h.Draw.Int64N(5))
	b.tokens = b.capacity
	l := tokenbucket.New(h.Redis, tokenbucket.Config{Capacity: b.capacity, Refill: b.refill, Interval: b.interval})
	article := articles.TokenBucket{
		Redis: h.Redis, Key: h.Key, Capacity: b.capacity, Refill: b.refill, Seconds: int64(b.interval / time.Second), Now: h.Now,
	}
	for requests = 1; requests <= 80; requests++ {
		h.MayPause(3 * b.interval)
		now, n := h.Passed(), 1+h.Draw.Int64N(min(4, b.capacity))
		exist, err := h.Redis.Exists(t.Context(), h.Key, article.TimeKey()).Result()
		require.NoError(t, err)
		if exist == 1 || !b.at(now, exist == 0) {
			return requests, limittest.Mismatch("keys of the bucket", now, exist, 2)
		}
		if h.Draw.IntN(2) == 0 {
			article.Cost = n
			want := b.article(n)
			if got, err := h.Either(article.Take, article.Eval)(t.Context()); err != nil || got != want {
				return requests, limittest.Mismatch("theirs", now, []any{got, err}, want)
			}
			continue
		}
		want := b.take(now, n)
		if got, err := l.Take(t.Context(), h.Key, n); err != nil || !h.Same(got, want) {
			return requests, limittest.Mismatch("ours", now, []any{got, err}, want)
		}
	}
	return requests, ""
}

func TestTurnsWithTheArticles(t *testing.T) {
	t.Parallel()
	// The bucket counts whole seconds.
	limittest.Turns{Limiter: "tokenbucket", Keys: keysOf, WholeSeconds: true, Play: play}.Take(t)
}
