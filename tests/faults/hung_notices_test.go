package faults_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// unread is a hook of a client whose server is silent: a command comes back after all
// that go-redis does by itself, four reads. It counts the round trips that PUBLISH.
type unread struct {
	mu        sync.Mutex
	on        bool
	now, most int
	published map[string]int
}

func (*unread) DialHook(next redis.DialHook) redis.DialHook { return next }

func (u *unread) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return u.do([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (u *unread) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return u.do(cmds, func() error { return next(ctx, cmds) })
	}
}

func (u *unread) do(cmds []redis.Cmder, next func() error) error {
	u.mu.Lock()
	on, publishes := u.on, cmds[0].Name() == "publish"
	for _, cmd := range cmds {
		if publishes && !on {
			channel, _ := cmd.Args()[1].(string)
			u.published[channel]++
		}
	}
	if on && publishes {
		u.now++
		u.most = max(u.most, u.now)
	}
	u.mu.Unlock()
	if !on {
		return next()
	}
	time.Sleep(12 * time.Second)
	if publishes {
		u.mu.Lock()
		u.now--
		u.mu.Unlock()
	}
	err := &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	return err
}

func (u *unread) hang(on bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.on = on
}

// seen returns how many round trips published at the same time, and how many channels got
// a notice.
func (u *unread) seen() (most, channels int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.most, len(u.published)
}

// Notices to a server that is silent gather no goroutines, and hold up no Close for longer
// than a call takes. Once the server answers, each limiter that was changed is told of.
func TestNoticesToASilentServer(t *testing.T) {
	t.Parallel()
	const timeout = 300 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		hook := &unread{published: make(map[string]int)}
		client := rratelimiter.New(rdb, rratelimiter.WithCallTimeout(timeout))
		var limiters []*rratelimiter.RateLimiter
		for i := range 10 {
			limiters = append(limiters, client.RateLimiter(fmt.Sprint("l", i), rratelimiter.WithRefusalCache(rratelimiter.WithNotices())))
			limitertest.MustTrySetRate(t, limiters[i], limitertest.Every(5, time.Hour))
		}
		synctest.Wait()
		rdb.AddHook(hook)
		release := func(lasting time.Duration) {
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					for start := time.Now(); time.Since(start) < lasting; {
						_ = limiters[i%10].Release(t.Context(), 1)
					}
				})
			}
			wg.Wait()
		}
		hook.hang(true)
		release(10 * time.Second)
		most, _ := hook.seen()
		assert.LessOrEqual(t, most, 2, "round trips that publish")

		hook.hang(false)
		time.Sleep(15 * time.Second)
		_, channels := hook.seen()
		assert.Equal(t, 10, channels)

		hook.hang(true)
		release(time.Second)
		start := time.Now()
		require.NoError(t, client.Close(t.Context()))
		assert.LessOrEqual(t, time.Since(start), timeout)
		time.Sleep(time.Minute)
	})
}
