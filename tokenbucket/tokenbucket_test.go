package tokenbucket_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// keysOf returns the keys of a bucket.
func keysOf(key string) []string { return []string{key, key + "_time"} }

func TestLimiter(t *testing.T) {
	t.Parallel()
	limittest.Run(t, limittest.Kind{
		New: func(client *rratelimiter.Client, permits int64, window time.Duration, opts ...rratelimiter.LimiterOption) limittest.Limiter {
			return tokenbucket.New(client, tokenbucket.Config{Capacity: permits, Refill: permits, Interval: window}, opts...)
		},
		Keys:     keysOf,
		Type:     "string",
		Fields:   []string{"tokens", "time"},
		Corrupt:  []string{"", "abc", "1.5", "1e3", " 3", "3 ", "9007199254740992", "99999999999999999999", "0x1", "--1"},
		Shortest: []time.Duration{time.Second},
		Most:     tokenbucket.MaxTokens,
		Limit:    "capacity",
		Window:   "interval",
		AtEdge:   19,
		Articles: func(rdb redis.Cmdable, key string, permits int64) []limittest.Rule {
			// At the edge of a second a caller has read its clock just before it.
			now := func() time.Time { return time.Now().Add(-rand.N(time.Second)) }
			article := articles.TokenBucket{Redis: rdb, Key: key, Capacity: permits, Refill: permits, Seconds: 3600, Cost: 1, Now: now}
			return []limittest.Rule{func(ctx context.Context) (int64, error) {
				left, err := article.Eval(ctx)
				return left + 1, err
			}}
		},
	})
}

// Who chooses the second key of another gets none, and does no harm.
func TestTake_RefusesSecondKeyOfAnother(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l := tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 2, Refill: 1, Interval: time.Minute})
		for key, other := range map[string]string{"ann_time": "ann", "{bob}_time": "{bob}", "_time_time": "_time"} {
			limittest.RequireRefused(t, l, key, 1, limit.ErrInvalidConfig, strconv.Quote(key), strconv.Quote(other), "hash tag")
			assert.Equal(t, 2, limittest.Grants(t, l, other, 3))
		}
		for _, key := range []string{"{ann_time}", "ann_time%", "time", "_times"} {
			assert.Equal(t, 2, limittest.Grants(t, l, key, 3), key)
		}
	})
}

// bucket is the rule of a token bucket that two programs share.
type bucket struct {
	capacity, refill int64
	interval         time.Duration

	tokens int64
	last   time.Duration // the second of the last refill
}

// at refills the bucket. If it is gone, Redis holds nothing of it: it starts full, which
// it must have been.
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

// until returns how long it takes for that many tokens to come.
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

// play lets two programs share a bucket: one with this package, one with the
// articles' script, by whose times to live a capacity that is no multiple of the
// refill would be exceeded.
func play(t *testing.T, h limittest.History) func() (mismatch string) {
	b := &bucket{refill: 1 + h.Draw.Int64N(4), interval: h.Span(4)}
	b.capacity = b.refill * (1 + h.Draw.Int64N(5))
	b.tokens = b.capacity
	l := tokenbucket.New(limitertest.OpenClient(h.Redis), tokenbucket.Config{Capacity: b.capacity, Refill: b.refill, Interval: b.interval})
	article := articles.TokenBucket{
		Redis: h.Redis, Key: h.Key, Capacity: b.capacity, Refill: b.refill, Seconds: int64(b.interval / time.Second), Now: time.Now,
	}
	return func() string {
		h.MayPause(3 * b.interval)
		now, n := h.Passed(), 1+h.Draw.Int64N(min(4, b.capacity))
		exist, err := h.Redis.Exists(t.Context(), h.Key, article.TimeKey()).Result()
		require.NoError(t, err)
		if exist == 1 || !b.at(now, exist == 0) {
			return fmt.Sprintf("after %v there are %d keys of the bucket", now, exist)
		}
		if h.Draw.IntN(2) == 0 {
			article.Cost = n
			return h.Theirs(t, article.Eval, b.article(n))
		}
		return h.Ours(t, l, n, b.take(now, n), nil)
	}
}

func TestTurnsWithTheArticles(t *testing.T) {
	t.Parallel()
	// The bucket counts whole seconds.
	limittest.Turns{Limiter: "tokenbucket", WholeSeconds: true, Play: play}.Take(t)
}

// Keys that a cluster has in different slots are refused, and the error says
// what to name them.
func TestClusterKeysApart(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 1, 0)
	rdb, plain := cluster.Client(t, nil), cluster.Nodes()[0].Client(t, nil)
	for what, l := range map[string]*tokenbucket.Limiter{"cluster client": threeInTenSeconds(rdb), "plain client": threeInTenSeconds(plain)} {
		_, giveBack, err := l.TakeReturnable(t.Context(), "user1", 1)
		require.ErrorIs(t, err, limit.ErrUnsupported, what)
		assert.ErrorContains(t, err, `"user1"`)
		assert.ErrorContains(t, err, `"user1_time"`)
		assert.ErrorContains(t, err, `"{user1}"`)
		assert.Nil(t, giveBack)
	}
	assert.Empty(t, redistest.Keys(t, rdb, "*"))

	l := threeInTenSeconds(rdb)
	for _, key := range []string{"{user1}", "limit:{user1}:/orders", "{a}{b}"} {
		assert.Equal(t, 10, limittest.Grants(t, l, key, 12), key)
	}
}

// On a Ring such keys would lie on two servers.
func TestRingKeysApart(t *testing.T) {
	t.Parallel()
	// The shards are one server: it is the client that parts the keys.
	addr := redistest.Shared(t).Addr()
	rdb := redistest.NewRing(map[string]string{"one": addr, "two": addr}, nil)
	t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
	l, refused := threeInTenSeconds(rdb), 0
	for range 30 {
		key := redistest.Name(t)
		d, err := l.Take(t.Context(), key, 1)
		if errors.Is(err, limit.ErrUnsupported) {
			refused++
			assert.ErrorContains(t, err, fmt.Sprintf("%q", "{"+key+"}"))
		} else {
			require.NoError(t, err)
			assert.Equal(t, int64(9), d.Remaining)
			assert.Equal(t, 9, limittest.Grants(t, l, key, 12))
		}
		assert.Equal(t, 10, limittest.Grants(t, l, "{"+key+"}", 12))
	}
	assert.Positive(t, refused)
}

// reserve asks for tokens of a bucket as middleware does, which settles what it has used.
func reserve(t *testing.T, l *tokenbucket.Limiter, key string, n int64) decide.Answer {
	t.Helper()
	of, _ := door.Behind[outage.Keyed](l)
	q := decide.Ask{Call: "Take", Key: key, Permits: n, Reserve: true}
	a, err := of.Asker(q).Ask(t.Context(), q)
	require.NoError(t, err)
	return a
}

// What was used beyond what was taken is owed, and refills pay it back. What had come back by itself meanwhile counts once.
func TestSettle_ChargesWhatTheBucketHasNot(t *testing.T) {
	t.Parallel()
	type row struct {
		before, asked int64         // taken
		passes        time.Duration // until it is settled
		used, tokens  int64         // then, of 10
	}
	rows := map[string]row{
		"Same":             {0, 4, 0, 4, 6},
		"Less":             {0, 4, 0, 1, 9},
		"Negative":         {0, 4, 0, -1, 10},
		"More":             {0, 4, 0, 10, 0},
		"MoreThanItHas":    {0, 4, 0, 25, -15},
		"Refused":          {8, 4, 0, 11, -9},
		"RefusedGivesBack": {8, 4, 0, -3, 5},
		"Later":            {0, 4, 2 * time.Minute, 10, 2},
		"Overflown":        {0, 4, 20 * time.Minute, 9, 10},
		"OverflownInPart":  {0, 4, 8 * time.Minute, 25, -7},
		"MoreThanLuaHolds": {0, 1, 0, math.MaxInt64 / 2, -9007199254740991},
	}
	limitertest.Each(t, map[string]bool{"Noted": true, "NotNoted": false}, func(t *testing.T, noted bool) {
		limitertest.Virtual(t, rows, func(t *testing.T, rdb redistest.Client, tc row) {
			l := tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Minute})
			require.Equal(t, tc.before > 0, reserve(t, l, "k", tc.before).Taken > 0)
			a := reserve(t, l, "k", tc.asked)
			time.Sleep(tc.passes)
			if noted { // the refills since, in Redis
				require.NoError(t, reserve(t, l, "k", 1).Undo(t.Context()))
			}
			require.NoError(t, a.Settle(t.Context(), tc.used, func(error) {}))
			d, err := l.Peek(t.Context(), "k", 0)
			require.NoError(t, err)
			assert.Equal(t, []any{tc.tokens >= 0, max(0, tc.tokens)}, []any{d.Granted, d.Remaining})
			d, err = l.Peek(t.Context(), "k", 1)
			require.NoError(t, err)
			if tc.tokens > -1<<20 {
				assert.Equal(t, max(0, time.Duration(1-tc.tokens)*time.Minute), d.RetryAfter)
			}
		})
	})
}

// The scripts do so on a real server too.
func TestSettle_Everywhere(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		l := tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Hour})
		key := limittest.Key(t)
		require.NoError(t, reserve(t, l, key, 4).Settle(t.Context(), 25, func(error) {}))
		d, err := l.Peek(t.Context(), key, 0)
		require.NoError(t, err)
		assert.False(t, d.Granted)
		assert.Equal(t, "-15", rdb.Get(t.Context(), key).Val())
		require.NoError(t, reserve(t, l, key, 0).Settle(t.Context(), -18, func(error) {}))
		assert.Equal(t, "3", rdb.Get(t.Context(), key).Val())
	})
}

// What a caller with a fast clock has refilled comes once, and a clock that has gone back keeps nothing away, whether tokens are
// given back to a bucket that owes some or taken.
func TestSettle_RefillThatLiesAhead(t *testing.T) {
	t.Parallel()
	const ahead = 5
	type row struct {
		tokens, used int64         // in Redis, and what is settled
		lives        time.Duration // of the keys
		ahead        int64         // then
	}
	limitertest.Virtual(t, map[string]row{
		"FastClockGivenBack": {-15, -15, 25 * time.Second, ahead},
		"FastClockCharged":   {-15, 15, 25 * time.Second, ahead},
		"GoneBackGivenBack":  {-20, -15, (30 + ahead) * time.Second, 0},
		"GoneBackCharged":    {-20, 15, (30 + ahead) * time.Second, 0},
	}, func(t *testing.T, rdb redistest.Client, tc row) {
		l := tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Second})
		now := time.Now().Unix()
		set := func(tokens, last int64, lives time.Duration) {
			require.NoError(t, rdb.Set(t.Context(), "k", tokens, lives).Err())
			require.NoError(t, rdb.Set(t.Context(), "k_time", last, lives).Err())
		}
		set(-20, now, 30*time.Second)
		a := reserve(t, l, "k", 0)
		set(tc.tokens, now+ahead, tc.lives)
		require.NoError(t, a.Settle(t.Context(), tc.used, func(error) {}))
		assert.Equal(t, strconv.FormatInt(tc.tokens-tc.used, 10), rdb.Get(t.Context(), "k").Val())
		assert.Equal(t, strconv.FormatInt(now+tc.ahead, 10), rdb.Get(t.Context(), "k_time").Val())
	})
}
