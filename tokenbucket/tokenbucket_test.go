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

// at refills the bucket. If it is gone, Redis holds nothing of it: it starts full, which it must have been.
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

// play lets two programs share a bucket: one with this package, one with the articles' script, by whose times to live a capacity
// that is no multiple of the refill would be exceeded.
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
		exist := limitertest.Must(h.Redis.Exists(t.Context(), h.Key, article.TimeKey()).Result())(t)
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

// Keys that a cluster has in different slots are refused, and the error says what to name them.
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
	return limitertest.Must(of.Asker(q).Ask(t.Context(), q))(t)
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
		"Negative":         {0, 4, 0, -1, 10},
		"More":             {0, 4, 0, 10, 0},
		"Refused":          {8, 4, 0, 11, -9},
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
			d := limitertest.Must(l.Peek(t.Context(), "k", 0))(t)
			assert.Equal(t, []any{tc.tokens >= 0, max(0, tc.tokens)}, []any{d.Granted, d.Remaining})
			d = limitertest.Must(l.Peek(t.Context(), "k", 1))(t)
			if tc.tokens > -1<<20 {
				assert.Equal(t, max(0, time.Duration(1-tc.tokens)*time.Minute), d.RetryAfter)
			}
		})
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

// The next tests are each named after something that the articles' scripts do wrong.

// threeInTenSeconds is a bucket of 10 tokens, no multiple of its refill.
func threeInTenSeconds(rdb redistest.Client) *tokenbucket.Limiter {
	return tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 10, Refill: 3, Interval: 10 * time.Second})
}

// requireTTLs checks that both keys expire together, and not before the bucket is full.
func requireTTLs(t *testing.T, rdb redistest.Client, key string, d limit.Decision) {
	t.Helper()
	tokens, last := rdb.PTTL(t.Context(), key).Val(), rdb.PTTL(t.Context(), key+"_time").Val()
	require.Equal(t, tokens, last)
	require.GreaterOrEqual(t, tokens, d.ResetAfter)
}

var ofBuckets = limitertest.Tests[redistest.Client]{
	// A refusal keeps the refill that it computed.
	"RefusalForgetsTheRefill": func(t *testing.T, rdb redistest.Client) {
		l, start := threeInTenSeconds(rdb), time.Now().Unix()
		require.True(t, limittest.Take(t, l, "key", 10).Granted)
		for i := int64(1); i <= 3; i++ {
			time.Sleep(10 * time.Second)
			d := limittest.Take(t, l, "key", 10)
			assert.False(t, d.Granted)
			assert.Equal(t, 3*i, d.Remaining)
			assert.Equal(t, strconv.FormatInt(3*i, 10), rdb.Get(t.Context(), "key").Val())
			assert.Equal(t, strconv.FormatInt(start+10*i, 10), rdb.Get(t.Context(), "key_time").Val())
			requireTTLs(t, rdb, "key", d)
		}
		// The articles' script goes on from there.
		article := articles.TokenBucket{Redis: rdb, Key: "key", Capacity: 10, Refill: 3, Seconds: 10, Cost: 9, Now: time.Now}
		assert.Zero(t, limitertest.Must(article.Eval(t.Context()))(t))
	},

	"Borrowing": func(t *testing.T, rdb redistest.Client) {
		ctx := t.Context()
		assert.False(t, limittest.Take(t, drained(t, rdb, 0), "key", 1).Granted, "off unless asked for")
		require.NoError(t, rdb.FlushAll(ctx).Err())

		l := drained(t, rdb, 5)
		d := limittest.Take(t, l, "key", 4)
		assert.True(t, d.Granted)
		assert.Equal(t, int64(1), d.Remaining, "may be borrowed")
		assert.Equal(t, 50*time.Second, d.ResetAfter)
		assert.Equal(t, "-4", rdb.Get(ctx, "key").Val())
		requireTTLs(t, rdb, "key", d)
		d = limittest.Take(t, l, "key", 3)
		assert.False(t, d.Granted, "2 more than may be borrowed")
		assert.Equal(t, 10*time.Second, d.RetryAfter)

		// To those who don't lend, it is empty.
		article := articles.TokenBucket{Redis: rdb, Key: "key", Capacity: 10, Refill: 3, Seconds: 10, Cost: 1, Now: time.Now}
		assert.EqualValues(t, -1, limitertest.Must(article.Eval(ctx))(t))

		// Refills pay back first.
		time.Sleep(20 * time.Second)
		strict := threeInTenSeconds(rdb)
		assert.True(t, limittest.Take(t, strict, "key", 2).Granted)
		assert.False(t, limittest.Take(t, strict, "key", 1).Granted)

		// As much as capacity and loan together, for one request too.
		time.Sleep(time.Hour)
		d = limittest.Take(t, l, "key", 15)
		assert.True(t, d.Granted)
		assert.Zero(t, d.Remaining)
		requireTTLs(t, rdb, "key", d)
		time.Sleep(d.ResetAfter - time.Millisecond)
		assert.Less(t, limittest.Take(t, l, "key", 15).Remaining, int64(15))
		time.Sleep(time.Millisecond)
		assert.Equal(t, int64(5), limittest.Take(t, l, "key", 10).Remaining)
	},

	// More tokens than the bucket holds, or fewer than may be borrowed, are what another configuration left.
	"TokensOfAnotherConfiguration": func(t *testing.T, rdb redistest.Client) {
		l, now := threeInTenSeconds(rdb), time.Now().Unix()
		require.NoError(t, rdb.MSet(t.Context(), "key", 5000, "key_time", now).Err())
		assert.Equal(t, int64(9), limittest.Take(t, l, "key", 1).Remaining)

		require.NoError(t, rdb.MSet(t.Context(), "key", -8, "key_time", now).Err())
		d := limittest.Take(t, l, "key", 1)
		assert.Equal(t, limit.Decision{Limit: 10, RetryAfter: 30 * time.Second, ResetAfter: time.Minute}, d)
		requireTTLs(t, rdb, "key", d)
		time.Sleep(30 * time.Second)
		assert.Equal(t, int64(0), limittest.Take(t, l, "key", 1).Remaining)
	},

	// Tokens of a bucket that is gone are not put into the new one.
	"GivingBackToAnotherBucket": func(t *testing.T, rdb redistest.Client) {
		l := tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Hour})
		giveBack := limittest.Returnable(t, l, "key", 4)
		require.NoError(t, rdb.FlushAll(t.Context()).Err())
		time.Sleep(time.Second)
		assert.Equal(t, 10, limittest.Grants(t, l, "key", 20))
		require.NoError(t, giveBack(t.Context()))
		assert.Equal(t, 0, limittest.Grants(t, l, "key", 20))
	},

	// A refusal does not put off the end of a bucket that no refill may reach, though the server's clock ticked between its keys.
	"BucketAheadOutlivesNoRefusal": func(t *testing.T, rdb redistest.Client) {
		l, ctx := threeInTenSeconds(rdb), t.Context()
		require.NoError(t, rdb.Set(ctx, "key", 5, 30*time.Second).Err())
		require.NoError(t, rdb.Set(ctx, "key_time", time.Now().Add(time.Hour).Unix(), 30*time.Second+time.Millisecond).Err())
		assert.Equal(t, 30*time.Second+time.Millisecond, limittest.Take(t, l, "key", 9).RetryAfter)
		time.Sleep(30*time.Second + time.Millisecond)
		assert.True(t, limittest.Take(t, l, "key", 10).Granted)
	},
}

func TestBucket(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, ofBuckets, func(t *testing.T, rdb redistest.Client, test func(t *testing.T, rdb redistest.Client)) { test(t, rdb) })
}

// The time has another time to live than the tokens, and neither covers more than the whole refills before the bucket is full. Both live for as long as the bucket
// takes to fill, whatever wrote them and whatever the clock did since.
func TestFaultTwoTimesToLive(t *testing.T) {
	t.Parallel()
	const second, minute, hour = time.Second, time.Minute, time.Hour
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l, ctx := threeInTenSeconds(rdb), t.Context()
		for _, ttls := range [][2]time.Duration{
			{second, hour}, {hour, second}, {0, minute}, {minute, 0}, {0, 0}, {hour, hour}, {hour, minute},
		} {
			for _, n := range []int64{1, 9} {
				for _, ahead := range []time.Duration{0, 5 * second, hour} {
					require.NoError(t, rdb.Set(ctx, "key", 5, ttls[0]).Err())
					require.NoError(t, rdb.Set(ctx, "key_time", time.Now().Add(ahead).Unix(), ttls[1]).Err())
					d := limittest.Take(t, l, "key", n)
					assert.Equal(t, n == 1, d.Granted)
					for _, key := range keysOf("key") {
						assert.Equal(t, 40*second, rdb.PTTL(ctx, key).Val())
					}
					assert.LessOrEqual(t, d.RetryAfter, 40*second+time.Millisecond)
					left := 40*second + time.Millisecond
					if ahead == 0 {
						left = time.Millisecond
						assert.LessOrEqual(t, d.ResetAfter, 40*second)
						time.Sleep(d.ResetAfter - left)
						assert.False(t, limittest.Take(t, l, "key", 10).Granted)
					}
					time.Sleep(left)
					assert.True(t, limittest.Take(t, l, "key", 10).Granted)
				}
			}
		}
	})
}

// If one of the keys is gone, callers get no more than the bucket allows.
func TestFaultOneKeyMissing(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, limitertest.Rows("key", "key_time"), func(t *testing.T, rdb redistest.Client, missing string) {
		l := threeInTenSeconds(rdb)
		for _, spent := range []int64{1, 7, 10} {
			time.Sleep(time.Hour)
			require.True(t, limittest.Take(t, l, "key", spent).Granted)
			start := time.Now()
			time.Sleep(12 * time.Second)
			require.NoError(t, rdb.Del(t.Context(), missing).Err())
			granted := spent
			for time.Since(start) < 2*time.Minute {
				d := limittest.Take(t, l, "key", 1)
				requireTTLs(t, rdb, "key", d)
				if d.Granted {
					granted++
				} else {
					time.Sleep(d.RetryAfter)
				}
				most := 10 + 3*(time.Since(start)/(10*time.Second))
				require.LessOrEqual(t, granted, int64(most), "after %v", time.Since(start))
			}
			assert.Greater(t, granted, int64(30), "the refills go on")
		}
	})
}

// A bucket that has lost its tokens is written so that it can be read again.
func TestTokensMissingBeforeARefill(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		l, key := threeInTenSeconds(rdb), redistest.Name(t)
		require.True(t, limittest.Take(t, l, key, 1).Granted)
		require.NoError(t, rdb.Del(t.Context(), key).Err())
		for range 2 {
			limittest.Take(t, l, key, 1)
			require.NotEqual(t, "-0", rdb.Get(t.Context(), key).Val())
		}
	})
}

// drained returns a limiter that lends that many tokens, and has none left.
func drained(t *testing.T, rdb redistest.Client, borrow int64) *tokenbucket.Limiter {
	t.Helper()
	l := tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 10, Refill: 3, Interval: 10 * time.Second, Borrow: borrow})
	require.True(t, limittest.Take(t, l, "key", 10).Granted)
	return l
}

func TestInvalidConfig(t *testing.T) {
	t.Parallel()
	for text, cfg := range map[string]tokenbucket.Config{
		"refill 0":              {Capacity: 1, Interval: time.Second},
		"refill -1":             {Capacity: 1, Refill: -1, Interval: time.Second},
		"refill 9007":           {Capacity: 1, Refill: tokenbucket.MaxTokens + 1, Interval: time.Second},
		"interval 500ms":        {Capacity: 1, Refill: 1, Interval: 500 * time.Millisecond},
		"interval 1.5s":         {Capacity: 1, Refill: 1, Interval: 1500 * time.Millisecond},
		"borrowing of -1":       {Capacity: 1, Refill: 1, Interval: time.Second, Borrow: -1},
		"borrowing of 90071992": {Capacity: 2, Refill: 1, Interval: time.Second, Borrow: tokenbucket.MaxTokens - 1},
		"to fill":               {Capacity: tokenbucket.MaxTokens, Refill: 1, Interval: time.Hour},
	} {
		l := tokenbucket.New(limitertest.OpenClient(limittest.Unreachable(t)), cfg)
		limittest.RequireRefused(t, l, "orders", 1, limit.ErrInvalidConfig, text, `"orders"`)
		assert.GreaterOrEqual(t, l.Window(), time.Duration(0))
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	rdb := limittest.Unreachable(t)
	assert.Equal(t, 40*time.Second, threeInTenSeconds(rdb).Window())
	assert.Equal(t, 50*time.Second, tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 10, Refill: 3, Interval: 10 * time.Second, Borrow: 5}).Window())
	assert.Equal(t, time.Second, tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 10, Refill: math.MaxInt32, Interval: time.Second}).Window())
}

// No time to live is beyond what Redis takes.
func TestLongestTimeToFill(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		const year = 365 * 24 * time.Hour
		l, key := tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 290, Refill: 1, Interval: year}), limittest.Key(t)
		d := limittest.Take(t, l, key, 290)
		assert.True(t, d.Granted)
		assert.Equal(t, 290*year, d.ResetAfter.Round(time.Minute))
		assert.Equal(t, year, limittest.Take(t, l, key, 1).RetryAfter.Round(time.Minute))
	})
}

// A service whose clock is ahead finds the time that it wrote: ours would make it refill again after each visit. Neither do we
// set it back while the server's clock goes on, nor more than once when that has gone back.
func TestRefill_KeepsTimeOfFastClock(t *testing.T) {
	t.Parallel()
	redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) {
		l := threeInTenSeconds(rdb)
		article := articles.TokenBucket{
			Redis: rdb, Key: "key", Capacity: 10, Refill: 3, Seconds: 10, Cost: 1,
			Now: func() time.Time { return time.Now().Add(25 * time.Second) },
		}
		play := func() (granted int64) {
			for range 20 {
				if limitertest.Must(article.Eval(t.Context()))(t) >= 0 {
					granted++
				}
				if limittest.Take(t, l, "key", 1).Granted {
					granted++
				}
			}
			return granted
		}
		assert.Equal(t, int64(10), play())
		step(-2 * time.Second)
		assert.LessOrEqual(t, play(), int64(10))
		assert.Zero(t, play())
	})
}

// A late give-back is reduced by the refills since, however far the clock has gone back.
func TestGiveBack_IsReducedByRefills(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]bool{"no one came by": false, "others came by": true}, func(t *testing.T, visit bool) {
		clocks := limitertest.Rows(time.Second, 3*time.Second, 5*time.Second, time.Hour)
		limitertest.Stepping(t, clocks, func(t *testing.T, rdb redistest.Client, step func(time.Duration), back time.Duration) {
			l := tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Second})
			giveBack := limittest.Returnable(t, l, "key", 10)
			time.Sleep(5 * time.Second)
			require.True(t, limittest.Take(t, l, "key", 5).Granted)
			step(-back)
			if visit {
				require.False(t, limittest.Take(t, l, "key", 1).Granted)
			}
			require.NoError(t, giveBack(t.Context()))
			d := limittest.Take(t, l, "key", 10)
			assert.LessOrEqual(t, d.Remaining, int64(5), "5 of the 10 have come back by themselves")
			requireTTLs(t, rdb, "key", d)
			assert.Equal(t, 10*time.Second, rdb.PTTL(t.Context(), "key").Val())
		})
	})
}
