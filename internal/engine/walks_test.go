package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Walks over more requests than are handled at once let go of the lock in between, and leave none out.

func TestLine_ManyAreRefusedWhenTheirTimeIsOver(t *testing.T) {
	t.Parallel()
	onFar(t, 2, 100*time.Millisecond, func(t *testing.T, e *far) {
		l := testLimiter("a", "1 3600000 0 0")
		e.take(t, l, 1)
		start := time.Now()
		for range 3*lane.MaxWalk + 1 {
			e.Go(func() {
				a, err := acquire(t.Context(), e.Engine, l, decide.Ask{Permits: 1, MayWait: true, Timeout: time.Second})
				assert.NoError(t, err)
				assert.False(t, a.Granted)
				assert.LessOrEqual(t, time.Since(start), time.Second+e.grace)
			})
		}
		e.Wait()
		synctest.Wait() // who answers the last of them counts them out after that
		assert.Zero(t, e.underWay())
	})
}

func TestClose_FailsManyWaiters(t *testing.T) {
	t.Parallel()
	onFar(t, 2, 100*time.Millisecond, func(t *testing.T, e *far) {
		l := testLimiter("a", "1 3600000 0 0")
		e.take(t, l, 1)
		for range 3*lane.MaxWalk + 1 {
			e.Go(func() {
				_, err := acquire(t.Context(), e.Engine, l, decide.Ask{Permits: 1, MayWait: true})
				assert.ErrorIs(t, err, limit.ErrClosed)
			})
		}
		time.Sleep(time.Minute)
		require.NoError(t, e.Close(t.Context()))
		e.Wait()
		synctest.Wait() // who answers the last of them counts them out after that
		assert.Zero(t, e.underWay())
	})
}
