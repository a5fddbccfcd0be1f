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

func TestVirtual(t *testing.T) {
	t.Parallel()
	for range 3 {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			ctx := t.Context()
			require.Zero(t, rdb.DBSize(ctx).Val())
			before, err := rdb.Time(ctx).Result()
			require.NoError(t, err)
			assert.WithinDuration(t, time.Now(), before, 0)
			assert.EqualValues(t, 946684800, before.Unix(), "no wall clock")
			require.NoError(t, rdb.Set(ctx, "key", "value", time.Hour).Err())

			time.Sleep(time.Hour - time.Microsecond)
			after, err := rdb.Eval(ctx, "local t = redis.call('TIME') return t[1] .. ' ' .. t[2]", nil).Text()
			require.NoError(t, err)
			assert.Equal(t, strconv.FormatInt(before.Unix()+3599, 10)+" 999999", after)
			assert.EqualValues(t, 1, rdb.Exists(ctx, "key").Val())

			// Redis keeps a key to the end of its last millisecond.
			time.Sleep(time.Millisecond + time.Microsecond)
			assert.EqualValues(t, 0, rdb.Exists(ctx, "key").Val())
			require.NoError(t, rdb.Set(ctx, "left", "behind", 0).Err())
		})
	}
}

// A clock that is set back moves the moments away at which keys expire.
func TestStepping(t *testing.T) {
	t.Parallel()
	for range 2 {
		redistest.Stepping(t, func(t *testing.T, rdb *redis.Client, step func(time.Duration)) {
			ctx, start := t.Context(), time.Now()
			require.NoError(t, rdb.Set(ctx, "key", "value", time.Minute).Err())
			require.NoError(t, rdb.Set(ctx, "stays", "value", 0).Err())
			time.Sleep(10 * time.Second)
			step(-time.Hour)
			assert.WithinDuration(t, start.Add(10*time.Second-time.Hour), rdb.Time(ctx).Val(), 0)
			assert.Equal(t, time.Hour+50*time.Second, rdb.PTTL(ctx, "key").Val())
			assert.Equal(t, time.Duration(-1), rdb.PTTL(ctx, "stays").Val())
			time.Sleep(time.Second)
			assert.WithinDuration(t, start.Add(11*time.Second-time.Hour), rdb.Time(ctx).Val(), 0)
			assert.Equal(t, time.Hour+49*time.Second, rdb.PTTL(ctx, "key").Val())
			step(time.Hour)
			assert.Equal(t, 49*time.Second, rdb.PTTL(ctx, "key").Val())
			time.Sleep(time.Second)
			assert.Equal(t, 48*time.Second, rdb.PTTL(ctx, "key").Val(), "a clock that has been set right goes on")
			assert.WithinDuration(t, start.Add(12*time.Second), rdb.Time(ctx).Val(), 0)
			step(50 * time.Second)
			assert.Equal(t, []string{"stays"}, rdb.Keys(ctx, "*").Val())
		})
	}
}

func TestVirtualOnEachRelease(t *testing.T) {
	t.Parallel()
	for _, v := range redistest.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			redistest.StartServer(t, v)
			cmd := asChild(t, "TestVirtual", "RRL_ENGINE=server", "RRL_TOPOLOGY=", "RRL_REDIS_SERVER="+string(v))
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			assert.Contains(t, string(out), "--- PASS: TestVirtual ")
		})
	}
}

// A bubble fails its test when a goroutine is left, so these need no assertion about that.

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

func TestHook(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	var seen []string
	rdb.AddHook(redistest.BeforeCommands(func(cmds ...redis.Cmder) {
		for _, cmd := range cmds {
			if cmd.Name() != "hello" { // a new connection's
				seen = append(seen, cmd.Name())
			}
		}
	}))
	rdb.AddHook(redistest.Hook(nil))
	require.NoError(t, rdb.Set(t.Context(), "key", 1, 0).Err())
	_, err := rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		pipe.Incr(t.Context(), "key")
		pipe.Get(t.Context(), "key")
		return nil
	})
	require.NoError(t, err)
	assert.Equal(t, []string{"set", "incr", "get"}, seen)
}
