package redistest_test

import (
	"strconv"
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
