package servers_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Whoever flushes the scripts of a server in use fails no caller, and no call
// runs twice.
func TestScriptFlushUnderLoad(t *testing.T) {
	t.Parallel()
	const (
		limiters = 4
		rate     = 1000
		callers  = 8
	)
	rdb := redistest.StartRedis(t).Client(t, nil)
	var (
		work, flusher sync.WaitGroup
		flushes       int
		granted       [limiters]atomic.Int64
	)
	done := make(chan struct{})
	flusher.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			assert.NoError(t, rdb.ScriptFlush(t.Context()).Err())
			flushes++
		}
	})
	for i := range limiters {
		cfg := limitertest.Every(rate, time.Hour)
		l := limitertest.NewLimiter(t, rdb, cfg)
		other := limitertest.NewClient(t, rdb).RateLimiter(l.Name()) // as another process
		for c := range callers {
			work.Go(func() {
				handle := l
				if c%2 == 1 {
					handle = other
				}
				for {
					ok, err := handle.TryAcquire(t.Context(), 1, 0)
					if !assert.NoError(t, err) || !ok {
						return
					}
					granted[i].Add(1)
					if c == 0 {
						_, err = handle.AvailablePermits(t.Context())
						assert.NoError(t, err)
						_, err = handle.Config(t.Context())
						assert.NoError(t, err)
					}
				}
			})
		}
	}
	work.Wait()
	close(done)
	flusher.Wait()
	for i := range granted {
		assert.EqualValues(t, rate, granted[i].Load())
	}
	require.Greater(t, flushes, 20, "the scripts were flushed again and again")
}
