package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Of those that wait for a job one may have gone. The next job does not run beside the others.
func TestJob_RunsBesideNoTryOfSeveralLimiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		e := newTestEngine(redistest.MiniClient(t, m, &redistest.Options{PoolSize: 10}))
		a, b := testLimiter("{x}a", "10 60000 0 0"), testLimiter("{x}b", "10 60000 0 0")
		start := func(run func(j *job)) {
			go func() {
				assert.NoError(t, e.runJob(t.Context(), a, &job{since: time.Now(), run: func(_ context.Context, j *job) error {
					j.begin()
					run(j)
					return nil
				}}))
			}()
			synctest.Wait()
		}
		end := make(chan struct{})
		start(func(*job) { <-end })
		ctx, leave := context.WithCancel(t.Context())
		for _, ctx := range []context.Context{ctx, t.Context()} {
			go func() { _, _ = e.AcquireAll(ctx, []*Limiter{a, b}, []int64{1, 1}, outage.Ask{}) }()
			synctest.Wait()
		}
		leave()
		synctest.Wait()
		start(func(j *job) {
			e.mu.Lock()
			defer e.mu.Unlock()
			assert.Zero(t, j.queue.beside)
		})
		close(end)
		synctest.Wait()
		require.NoError(t, e.Close(t.Context()))
	})
}
