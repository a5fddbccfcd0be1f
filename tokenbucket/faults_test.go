package tokenbucket_test

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// The tests of this file are each named after something that the articles'
// scripts do wrong.

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
		left, err := article.Eval(t.Context())
		require.NoError(t, err)
		assert.Zero(t, left)
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
		left, err := article.Eval(ctx)
		require.NoError(t, err)
		assert.EqualValues(t, -1, left)

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

	// At RetryAfter the request passes if tokens are lent, too.
	"BorrowingRetryAfter": func(t *testing.T, rdb redistest.Client) {
		l := tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 10, Refill: 3, Interval: 10 * time.Second, Borrow: 5})
		refused := 0
		for i := range int64(80) {
			n := 1 + i*7%15
			d := limittest.Take(t, l, "key", n)
			requireTTLs(t, rdb, "key", d)
			if d.Granted {
				continue
			}
			refused++
			time.Sleep(d.RetryAfter - time.Millisecond)
			require.False(t, limittest.Take(t, l, "key", n).Granted)
			time.Sleep(time.Millisecond)
			require.True(t, limittest.Take(t, l, "key", n).Granted)
		}
		assert.Greater(t, refused, 20)
	},

	// More tokens than the bucket holds, or fewer than may be borrowed, are what
	// another configuration left.
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
		_, giveBack, err := l.TakeReturnable(t.Context(), "key", 4)
		require.NoError(t, err)
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

// Theirs writes a time to live of 33 s; the first call of this package mends it.
func TestFaultTTLOfTheArticlesIsMended(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, map[string]int64{"granted": 8, "refused": 10}, func(t *testing.T, rdb redistest.Client, cost int64) {
		article := articles.TokenBucket{Redis: rdb, Key: "key", Capacity: 10, Refill: 3, Seconds: 10, Cost: cost, Now: time.Now}
		_, err := article.Eval(t.Context())
		require.NoError(t, err)
		require.Equal(t, 33*time.Second, rdb.PTTL(t.Context(), "key").Val())
		d := limittest.Take(t, threeInTenSeconds(rdb), "key", 2)
		assert.Equal(t, cost == 8, d.Granted)
		assert.Equal(t, 40*time.Second, d.ResetAfter)
		requireTTLs(t, rdb, "key", d)
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

// After a clock has gone back the refills go on, even if callers take all tokens all the time.
func TestRefill_GoesOnAfterClockWentBack(t *testing.T) {
	t.Parallel()
	limitertest.Stepping(t, limitertest.Rows[time.Duration](time.Second, 15*time.Second, time.Hour), func(t *testing.T, rdb redistest.Client, step func(time.Duration), back time.Duration) {
		l := threeInTenSeconds(rdb)
		require.True(t, limittest.Take(t, l, "key", 9).Granted)
		step(-back)
		assert.True(t, limittest.Take(t, l, "key", 1).Granted)
		assert.Equal(t, strconv.FormatInt(rdb.Time(t.Context()).Val().Unix(), 10), rdb.Get(t.Context(), "key_time").Val())
		for range 12 {
			time.Sleep(10 * time.Second)
			d := limittest.Take(t, l, "key", 3)
			assert.True(t, d.Granted)
			assert.Zero(t, d.Remaining)
			assert.Equal(t, 40*time.Second, d.ResetAfter)
			requireTTLs(t, rdb, "key", d)
		}
	})
}

// A service whose clock is ahead finds the time that it wrote: ours would make it refill again
// after each visit. Neither do we set it back while the server's clock goes on, nor more than
// once when that has gone back.
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
				left, err := article.Eval(t.Context())
				require.NoError(t, err)
				if left >= 0 {
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
			_, giveBack, err := l.TakeReturnable(t.Context(), "key", 10)
			require.NoError(t, err)
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

// A debt that takes longer to pay back than any clock counts is still a debt.
func TestDebtWithoutEnd(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		key, ctx := limittest.Key(t), t.Context()
		require.NoError(t, rdb.Set(ctx, key, -int64(tokenbucket.MaxTokens), time.Hour).Err())
		require.NoError(t, rdb.Set(ctx, key+"_time", time.Now().Unix(), time.Hour).Err())
		l := tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 1, Refill: 1, Interval: 24 * time.Hour})
		for range 2 {
			d := limittest.Take(t, l, key, 1)
			assert.False(t, d.Granted)
			assert.Equal(t, math.MaxInt64*time.Nanosecond/1e6*1e6, d.RetryAfter)
			assert.Positive(t, rdb.PTTL(ctx, key).Val())
		}
	})
}
