package defaults_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
)

// A rateOf takes a permit of the key {ann}, and returns the limit that the answer shows, if it shows one.
type rateOf func(t *testing.T, c *rratelimiter.Client, k *rratelimiter.KeyedLimiter) int64

var rateCalls = map[string]rateOf{
	"Take": func(t *testing.T, _ *rratelimiter.Client, k *rratelimiter.KeyedLimiter) int64 {
		return limittest.Take(t, k, "{ann}", 1).Limit
	},
	"TryAcquire": func(t *testing.T, _ *rratelimiter.Client, k *rratelimiter.KeyedLimiter) int64 {
		limitertest.MustAcquire(t, k.Limiter("{ann}"), 1)
		return 0
	},
	"TakeAll": func(t *testing.T, c *rratelimiter.Client, k *rratelimiter.KeyedLimiter) int64 {
		each, err := c.TakeAll(t.Context(), k.Claim("{ann}", 1), k.Claim("{ann}:other", 1))
		require.NoError(t, err)
		return each[0].Limit
	},
	"Peek": func(t *testing.T, _ *rratelimiter.Client, k *rratelimiter.KeyedLimiter) int64 {
		d, err := k.Peek(t.Context(), "{ann}", 1)
		require.NoError(t, err)
		return d.Limit
	},
}

// A program's own later answer holds at once, however far the server's clock is from the program's.
func TestKeyedFunc_OwnLaterAnswerHoldsWhateverTheClocksSay(t *testing.T) {
	t.Parallel()
	calls := map[string]rateOf{"Take": rateCalls["Take"], "TakeAll": rateCalls["TakeAll"]}
	for _, off := range []time.Duration{0, 3 * time.Second, -3 * time.Second, time.Hour, -time.Hour} {
		limitertest.Each(t, calls, func(t *testing.T, call rateOf) {
			redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) {
				step(off)
				rate := int64(0)
				client := limitertest.NewClient(t, rdb)
				plans := client.KeyedFunc("plan:", func(string) rratelimiter.Config { return rratelimiter.PerHour(rate) })
				for _, rate = range []int64{10, 50, 10, 20} {
					assert.Equal(t, rate, call(t, client, plans), "off by %v", off)
					assert.Equal(t, rate, call(t, client, plans), "off by %v", off)
					time.Sleep(10 * time.Millisecond)
				}
			})
		})
	}
}

// After the server's clock went back, as at a failover to a slower one, a default learnt since replaces one that is
// dated ahead by then. Of two programs the one that learnt later keeps it.
func TestDefault_OneDatedAheadKeepsNoLaterOneOut(t *testing.T) {
	t.Parallel()
	redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) {
		old := limitertest.NewClient(t, rdb).Keyed("user:", rratelimiter.PerHour(10))
		limittest.Take(t, old, "ann", 1)
		ofAnother(t, rdb, "user:ann")
		step(-30 * time.Second)
		time.Sleep(time.Second)
		later := limitertest.NewClient(t, rdb).Keyed("user:", rratelimiter.PerHour(20))
		for range 3 {
			assert.EqualValues(t, 20, limittest.Take(t, later, "ann", 1).Limit)
			time.Sleep(time.Minute)
			assert.EqualValues(t, 20, limittest.Take(t, old, "ann", 1).Limit)
		}
	})
}

// dateOf returns when the default of a limiter was made, in epoch microseconds.
func dateOf(t *testing.T, rdb redistest.Client, name string) (date int64) {
	t.Helper()
	var rate, interval, kind, keep int64
	_, err := fmt.Sscan(rdb.HGet(t.Context(), name, "default").Val(), &rate, &interval, &kind, &keep, &date)
	require.NoError(t, err)
	return date
}

// ofAnother makes the limiter's default that of a program which is none of this process.
func ofAnother(t *testing.T, rdb redistest.Client, name string) {
	t.Helper()
	text := rdb.HGet(t.Context(), name, "default").Val()
	require.NoError(t, rdb.HSet(t.Context(), name, "default", text[:strings.LastIndexByte(text, ' ')]+" other.1").Err())
}

// An answer that shows another rate makes the next request compare: the program before has made the limiter again.
func TestDefault_AnswerWithAnotherRateIsCompared(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, rateCalls, func(t *testing.T, call rateOf) {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			var log bytes.Buffer
			old := limitertest.NewClient(t, rdb)
			client := limitertest.NewClient(t, rdb, limitertest.LogTo(&log))
			before, users := old.Keyed("user:", rratelimiter.PerSecond(5)), client.Keyed("user:", rratelimiter.PerSecond(8))
			take := rateCalls["Take"]
			take(t, client, users)
			for range 3 {
				time.Sleep(2 * time.Second) // the limiter has gone
				assert.EqualValues(t, 5, take(t, old, before))
				call(t, client, users)
				assert.EqualValues(t, 8, take(t, client, users))
				assert.EqualValues(t, 8, take(t, old, before), "it began before")
			}
			synctest.Wait()
			assert.Equal(t, 1, strings.Count(log.String(), "rate replaced"), log.String())
		})
	})
}
