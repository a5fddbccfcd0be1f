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
