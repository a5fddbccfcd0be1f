package lane_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// What takes no permits does not wait for replicas, also beside a call that does.
func TestReplicas_OnlyDecisionsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const wait = 100 * time.Millisecond
		_, m := redistest.Mini(t)
		rdb := redistest.MiniClient(t, m, &redistest.Options{PoolSize: 20})
		rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, _ func() error) error {
			time.Sleep(time.Millisecond)
			for _, cmd := range cmds {
				if cmd.Name() == "wait" { // the replicas have stopped
					time.Sleep(wait)
				}
				cmd.(interface{ SetVal(val any) }).SetVal(int64(0))
			}
			return nil
		}))
		lanes := lane.New(script.NewConn(rdb, script.DefaultTimeout), nil)
		lanes.AwaitReplicas(lane.Replicas{Count: 1, Wait: wait})
		t.Cleanup(func() { assert.NoError(t, lanes.Close(context.Background(), nil)) })
		var all sync.WaitGroup
		do := func(requests int, check func(took time.Duration, call *lane.Call)) {
			call := &lane.Call{Call: *commandOf(requests), Requests: requests}
			call.Repeat = true
			all.Go(func() {
				start := time.Now()
				done, err := lanes.Do(t.Context(), call)
				assert.True(t, done)
				assert.NoError(t, err)
				check(time.Since(start), call)
			})
		}
		for range 10 {
			do(1, func(took time.Duration, call *lane.Call) {
				assert.GreaterOrEqual(t, took, wait)
				assert.Error(t, call.Short)
			})
			time.Sleep(time.Millisecond)
			do(0, func(took time.Duration, call *lane.Call) {
				assert.Less(t, took, wait/2)
				assert.NoError(t, call.Short)
			})
			time.Sleep(2 * wait)
		}
		all.Wait()
	})
}
