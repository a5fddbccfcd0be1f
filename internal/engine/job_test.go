package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// startJob starts a job that does what run does.
func startJob(t *testing.T, e *Engine, l *Limiter, run func(j *job)) {
	t.Helper()
	go func() {
		assert.NoError(t, e.runJob(t.Context(), l, &job{since: time.Now(), run: func(_ context.Context, j *job) error {
			j.begin()
			run(j)
			return nil
		}}))
	}()
	synctest.Wait()
}

// Of those that wait for a job one may have gone. The next job does not run beside the others.
func TestJob_RunsBesideNoTryOfSeveralLimiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		e := newTestEngine(redistest.MiniClient(t, m, &redistest.Options{PoolSize: 10}))
		a, b := testLimiter("{x}a", "10 60000 0 0"), testLimiter("{x}b", "10 60000 0 0")
		end := make(chan struct{})
		startJob(t, e, a, func(*job) { <-end })
		ctx, leave := context.WithCancel(t.Context())
		for _, ctx := range []context.Context{ctx, t.Context()} {
			go func() {
				_, _ = e.AcquireAll(ctx, []Claim{{Limiter: a, Permits: 1}, {Limiter: b, Permits: 1}}, decide.Ask{})
			}()
			synctest.Wait()
		}
		leave()
		synctest.Wait()
		startJob(t, e, a, func(j *job) {
			j.queue.lock()
			defer j.queue.unlock()
			assert.Zero(t, j.queue.beside)
		})
		close(end)
		synctest.Wait()
		require.NoError(t, e.Close(t.Context()))
	})
}

// Who waits for permits that a settlement frees while a job is under way comes before the next job.
func TestSettle_FreedPermitsGoToTheLineBeforeTheNextJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		e := newTestEngine(redistest.MiniClient(t, m, &redistest.Options{PoolSize: 10}))
		l := testLimiter("a", "5 60000 0 0")
		reserved, err := acquire(t.Context(), e, l, decide.Ask{Permits: 5, Reserve: true})
		require.NoError(t, err)
		var served atomic.Bool
		go func() {
			a, err := acquire(t.Context(), e, l, decide.Ask{Permits: 5, MayWait: true})
			assert.NoError(t, err)
			served.Store(a.Granted)
		}()
		time.Sleep(time.Second)
		end := make(chan struct{})
		startJob(t, e, l, func(*job) { <-end })
		go func() { assert.NoError(t, reserved.Settle(t.Context(), 0, func(error) {})) }()
		synctest.Wait()
		startJob(t, e, l, func(*job) {
			time.Sleep(time.Second)
			assert.True(t, served.Load())
		})
		close(end)
		time.Sleep(10 * time.Second)
		require.NoError(t, e.Close(t.Context()))
	})
}
