package tokenbucket_test

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// What was used beyond what was taken is owed, and refills pay it back. What had come back by itself meanwhile counts once.
func TestSettle_ChargesWhatTheBucketHasNot(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		before, asked int64         // taken
		passes        time.Duration // until it is settled
		used, tokens  int64         // then, of 10
	}{
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
	} {
		for _, noted := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
					l := tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Minute})
					of, _ := door.Behind[outage.Keyed](l)
					ask := func(n int64) decide.Answer {
						q := decide.Ask{Key: "k", Permits: n, Reserve: true}
						a, err := of.Asker(q).Ask(t.Context(), q)
						require.NoError(t, err)
						return a
					}
					if tc.before > 0 {
						require.True(t, ask(tc.before).Granted)
					}
					a := ask(tc.asked)
					time.Sleep(tc.passes)
					if noted { // the refills since, in Redis
						require.NoError(t, ask(1).Undo(t.Context()))
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
	}
}

// The scripts do so on a real server too.
func TestSettle_Everywhere(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		l := tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Hour})
		of, _ := door.Behind[outage.Keyed](l)
		key := "{" + redistest.Name(t) + "}"
		q := decide.Ask{Key: key, Permits: 4, Reserve: true}
		a, err := of.Asker(q).Ask(t.Context(), q)
		require.NoError(t, err)
		require.NoError(t, a.Settle(t.Context(), 25, func(error) {}))
		d, err := l.Peek(t.Context(), key, 0)
		require.NoError(t, err)
		assert.False(t, d.Granted)
		assert.Equal(t, "-15", rdb.Get(t.Context(), key).Val())
		q = decide.Ask{Key: key, Reserve: true}
		a, err = of.Asker(q).Ask(t.Context(), q)
		require.NoError(t, err)
		require.NoError(t, a.Settle(t.Context(), -18, func(error) {}))
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
	limitertest.Each(t, map[string]row{
		"FastClockGivenBack": {-15, -15, 25 * time.Second, ahead},
		"FastClockCharged":   {-15, 15, 25 * time.Second, ahead},
		"GoneBackGivenBack":  {-20, -15, (30 + ahead) * time.Second, 0},
		"GoneBackCharged":    {-20, 15, (30 + ahead) * time.Second, 0},
	}, func(t *testing.T, tc row) {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			l := tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Second})
			of, _ := door.Behind[outage.Keyed](l)
			now := time.Now().Unix()
			set := func(tokens, last int64, lives time.Duration) {
				require.NoError(t, rdb.Set(t.Context(), "k", tokens, lives).Err())
				require.NoError(t, rdb.Set(t.Context(), "k_time", last, lives).Err())
			}
			set(-20, now, 30*time.Second)
			q := decide.Ask{Key: "k", Reserve: true}
			a, err := of.Asker(q).Ask(t.Context(), q)
			require.NoError(t, err)
			set(tc.tokens, now+ahead, tc.lives)
			require.NoError(t, a.Settle(t.Context(), tc.used, func(error) {}))
			assert.Equal(t, strconv.FormatInt(tc.tokens-tc.used, 10), rdb.Get(t.Context(), "k").Val())
			assert.Equal(t, strconv.FormatInt(now+tc.ahead, 10), rdb.Get(t.Context(), "k_time").Val())
		})
	})
}
