package articles_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// rule is both forms of one rule, each on a key of its own.
type rule struct {
	take, eval func(context.Context) (int64, error)
}

// rules returns those of articles, 5 requests in 10 s or thereabouts, on the
// keys "take" and "eval".
func rules(rdb redis.Cmdable) map[string]rule {
	const take, eval = "take", "eval"
	fixed := func(key string) articles.FixedWindow {
		return articles.FixedWindow{Redis: rdb, Key: key, Limit: 5, Seconds: 10}
	}
	counter := func(key string) articles.Counter {
		return articles.Counter{Redis: rdb, Key: key, Limit: 5, Seconds: 10}
	}
	log := func(key, thresholds string) articles.SlidingLog {
		return articles.SlidingLog{Redis: rdb, Key: key, Threshold: 5, Seconds: 10, Thresholds: thresholds, Now: time.Now}
	}
	bucket := func(key string) articles.TokenBucket {
		return articles.TokenBucket{Redis: rdb, Key: key, Capacity: 10, Refill: 3, Seconds: 4, Cost: 2, Now: time.Now}
	}
	return map[string]rule{
		"fixed window":   {fixed(take).Take, fixed(eval).Eval},
		"counter":        {counter(take).Take, counter(eval).Eval},
		"sliding log":    {log(take, "").Take, log(eval, "").Eval},
		"its thresholds": {log(take, "thresholds").Take, log(eval, "thresholds").Eval},
		"token bucket":   {bucket(take).Take, bucket(eval).Eval},
	}
}

func TestBothFormsAgree(t *testing.T) {
	t.Parallel()
	for name := range rules(nil) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				ctx, draw, r := t.Context(), rand.New(rand.NewPCG(6, 1)), rules(rdb)[name]
				require.NoError(t, rdb.HSet(ctx, "thresholds", "take", 3, "eval", 3).Err())
				answers := map[int64]int{}
				for range 150 {
					time.Sleep(time.Duration(draw.IntN(3000)) * time.Millisecond)
					want, err := r.take(ctx)
					require.NoError(t, err)
					got, err := r.eval(ctx)
					require.NoError(t, err)
					require.Equal(t, want, got)
					require.Equal(t, state(t, rdb, "take"), state(t, rdb, "eval"))
					answers[got]++
				}
				assert.Greater(t, len(answers), 1)
			})
		})
	}
}

// state is what Redis holds of a rule, but for the members' names.
func state(t *testing.T, rdb *redis.Client, key string) []any {
	t.Helper()
	ctx := t.Context()
	all := []any{rdb.PTTL(ctx, key).Val(), rdb.PTTL(ctx, key+"_time").Val(), rdb.Get(ctx, key+"_time").Val()}
	if rdb.Type(ctx, key).Val() != "zset" {
		return append(all, rdb.Get(ctx, key).Val())
	}
	for _, z := range rdb.ZRangeWithScores(ctx, key, 0, -1).Val() {
		all = append(all, z.Score)
	}
	return all
}

// The scenarios that the rules are told by: how many of so many requests pass.
func TestScenarios(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		ctx := t.Context()
		passed := func(requests int, take func(context.Context) (int64, error)) int {
			n := 0
			for range requests {
				answer, err := take(ctx)
				require.NoError(t, err)
				if answer > 0 {
					n++
				}
			}
			return n
		}
		fixed := articles.FixedWindow{Redis: rdb, Key: "fixed", Limit: 100, Seconds: 60}
		assert.Equal(t, 100, passed(120, fixed.Take))

		counter := articles.Counter{Redis: rdb, Key: "counter", Limit: 10, Seconds: 1}
		assert.Equal(t, 10, passed(30, counter.Take))
		assert.Equal(t, "30", rdb.Get(ctx, "counter").Val(), "it counts refusals too")

		log := articles.SlidingLog{Redis: rdb, Key: "log", Threshold: 3, Seconds: 60, Thresholds: "rate:limit:config", Now: time.Now}
		assert.Equal(t, 3, passed(5, log.Take))
		require.NoError(t, rdb.HSet(ctx, "rate:limit:config", "log", "4").Err())
		assert.Equal(t, 1, passed(5, log.Take))
		time.Sleep(time.Minute)
		assert.Equal(t, 4, passed(5, log.Take))

		bucket := articles.TokenBucket{Redis: rdb, Key: "bucket", Capacity: 11, Refill: 2, Seconds: 1, Cost: 1, Now: time.Now}
		assert.Equal(t, 10, passed(20, bucket.Take), "and one that leaves none")
		time.Sleep(2 * time.Second)
		assert.Equal(t, 3, passed(20, bucket.Take))
	})
}
