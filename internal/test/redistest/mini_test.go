package redistest_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestMiniFollowsTheFakeClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		ctx := t.Context()

		before, err := rdb.Time(ctx).Result()
		require.NoError(t, err)
		assert.WithinDuration(t, time.Now(), before, 0)
		require.NoError(t, rdb.Set(ctx, "key", "value", time.Minute).Err())

		time.Sleep(59 * time.Second)
		after, err := rdb.Eval(ctx, "return redis.call('TIME')[1]", nil).Int64()
		require.NoError(t, err)
		assert.Equal(t, before.Unix()+59, after)
		assert.EqualValues(t, 1, rdb.Exists(ctx, "key").Val())

		time.Sleep(time.Second)
		assert.EqualValues(t, 0, rdb.Exists(ctx, "key").Val())
	})
}

// A bubble fails its test when a goroutine is left, so these need no
// assertion about that.

func TestMiniLeavesNothingAfterManyCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() { assert.NoError(t, rdb.Incr(t.Context(), "key").Err()) })
		}
		wg.Wait()
		assert.Equal(t, "200", rdb.Get(t.Context(), "key").Val())
	})
}

func TestMiniLeavesNothingWhenCallersGiveUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 {
			go rdb.Incr(ctx, "key")
			go rdb.Incr(t.Context(), "key")
		}
		m.Close()
	})
}

func TestMiniTakesLongPipelines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		start := time.Now()
		cmds, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			for i := range 5000 {
				p.Set(t.Context(), "key:"+strconv.Itoa(i), i, 0)
			}
			return nil
		})
		require.NoError(t, err)
		assert.Len(t, cmds, 5000)
		assert.Zero(t, time.Since(start), "nothing waited for a timeout")
	})
}

func TestMiniOutsideOfABubble(t *testing.T) {
	t.Parallel()
	rdb, m := redistest.Mini(t)
	ctx := t.Context()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	m.SetTime(now)
	require.NoError(t, rdb.Set(ctx, "key", "value", time.Hour).Err())
	m.SetTime(now.Add(time.Hour))
	assert.EqualValues(t, 0, rdb.Exists(ctx, "key").Val())
}

func TestMiniClientsShareTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		other := redistest.MiniClient(t, m, &redis.Options{MaxRetries: -1})
		require.NoError(t, rdb.Set(t.Context(), "key", "value", 0).Err())
		assert.Equal(t, "value", other.Get(t.Context(), "key").Val())
	})
}

func TestMiniClientTimesOutOnTheFakeClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		p := redistest.MiniProxy(t, m)
		rdb := p.Client(t, &redis.Options{MaxRetries: -1, ReadTimeout: 7 * time.Second})
		p.OnCommand(redistest.Nth(1, "incr", redistest.Swallow))
		start := time.Now()
		require.Error(t, rdb.Incr(t.Context(), "key").Err())
		assert.Equal(t, 7*time.Second, time.Since(start))
		assert.Equal(t, "1", rdb.Get(t.Context(), "key").Val(), "a new connection works")
	})
}
