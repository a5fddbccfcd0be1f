package script_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// flights counts the commands of each round trip, and holds them back.
type flights struct {
	mu    sync.Mutex
	sizes []int
	hold  chan struct{} // closed to let go; nil for none
	fails error         // of the pipeline itself
}

func (f *flights) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *flights) take(cmds []redis.Cmder) {
	n := 0
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "eval") {
			n++
		}
	}
	if n == 0 {
		return
	}
	f.mu.Lock()
	f.sizes = append(f.sizes, n)
	f.mu.Unlock()
	if f.hold != nil {
		<-f.hold
	}
}

func (f *flights) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		f.take([]redis.Cmder{cmd})
		return next(ctx, cmd)
	}
}

func (f *flights) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		f.take(cmds)
		if f.fails != nil {
			return f.fails
		}
		return next(ctx, cmds)
	}
}

func TestCommandsThatMeetGoTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		require.NoError(t, rdb.ScriptLoad(t.Context(), incr.Source).Err())
		f := &flights{hold: make(chan struct{})}
		rdb.AddHook(f)
		sender := script.NewSender(rdb)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				reply, err := script.Once(t.Context(), sender, incr, script.KeysOf(fmt.Sprint("key", i)))
				assert.NoError(t, err)
				assert.EqualValues(t, 1, reply)
			})
			synctest.Wait()
		}
		assert.Equal(t, []int{1, 1}, f.sizes, "who finds the way free goes at once")
		close(f.hold)
		wg.Wait()
		assert.Len(t, f.sizes, 4)
		assert.Equal(t, 1000, f.sizes[0]+f.sizes[1]+f.sizes[2]+f.sizes[3])
		assert.LessOrEqual(t, max(f.sizes[2], f.sizes[3]), 512)
	})
}

func TestOneAfterTheOtherGoAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		require.NoError(t, rdb.ScriptLoad(t.Context(), incr.Source).Err())
		f := &flights{}
		rdb.AddHook(f)
		sender := script.NewSender(rdb)
		for i := range int64(5) {
			reply, err := script.Once(t.Context(), sender, incr, script.KeysOf("key"))
			require.NoError(t, err)
			assert.Equal(t, i+1, reply)
		}
		assert.Equal(t, []int{1, 1, 1, 1, 1}, f.sizes)
	})
}

// A pipeline that fails before it is sent, as by somebody's hook, leaves no
// command without an error.
func TestAPipelineThatFailsByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		require.NoError(t, rdb.ScriptLoad(t.Context(), incr.Source).Err())
		f := &flights{hold: make(chan struct{}), fails: errors.New("not today")}
		rdb.AddHook(f)
		sender := script.NewSender(rdb)
		var wg sync.WaitGroup
		failed := make([]error, 10)
		for i := range failed {
			wg.Go(func() { _, failed[i] = script.Once(t.Context(), sender, incr, script.KeysOf(fmt.Sprint("key", i))) })
			synctest.Wait()
		}
		close(f.hold)
		wg.Wait()
		for i, err := range failed {
			if i < 2 {
				assert.NoError(t, err)
			} else {
				require.ErrorIs(t, err, script.ErrLost)
				assert.ErrorContains(t, err, "not today")
			}
		}
	})
}

// Of a pipeline whose answers were lost nothing runs twice.
func TestAPipelineIsNotRepeated(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	direct := server.Client(t, nil)
	require.NoError(t, direct.ScriptLoad(t.Context(), incr.Source).Err())
	proxy := redistest.StartProxy(t, server.Addr())
	calls := 0
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if c.Name() != "evalsha" {
			return redistest.Pass
		}
		calls++
		switch calls % 7 {
		case 3:
			return redistest.DropAnswer
		case 5:
			return redistest.Cut
		}
		return redistest.Pass.After(200 * time.Microsecond)
	})
	sender := script.NewSender(proxy.Client(t, nil))
	var wg sync.WaitGroup
	var mu sync.Mutex
	answered, lost := map[int64]bool{}, int64(0)
	for range 32 {
		wg.Go(func() {
			for range 20 {
				reply, err := script.Once(context.Background(), sender, incr, script.KeysOf("key"))
				mu.Lock()
				if err == nil {
					n, _ := reply.(int64)
					assert.False(t, answered[n], "answered twice")
					answered[n] = true
				} else {
					assert.ErrorIs(t, err, script.ErrLost)
					lost++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	proxy.Settle(t)
	ran, err := direct.Get(t.Context(), "key").Int64()
	require.NoError(t, err)
	assert.EqualValues(t, 640, int64(len(answered))+lost)
	assert.GreaterOrEqual(t, ran, int64(len(answered)))
	assert.LessOrEqual(t, ran, int64(640), "each ran once at most")
}
