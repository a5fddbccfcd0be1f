package engine

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Releases that go together have the time of a call each, from when they came.
func TestReleasesThatGoTogetherHaveTheirOwnTime(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"the answer comes late": false, "no answer comes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, f := farEngine(t, 8)
				l := testLimiter("a", hourly)
				f.takes(0)
				_, _, err := e.Acquire(t.Context(), l, Wish{Permits: 30})
				assert.NoError(t, err)
				assert.NoError(t, e.Release(t.Context(), l, 1)) // the server knows the script
				var wg sync.WaitGroup
				release := func(want error) {
					wg.Go(func() {
						start := time.Now()
						assert.ErrorIs(t, e.Release(t.Context(), l, 1), want)
						assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout)
					})
				}
				f.takes(2800 * time.Millisecond)
				release(nil) // what comes next waits for it
				time.Sleep(100 * time.Millisecond)
				var last error
				f.takes(400 * time.Millisecond)
				if lost {
					last = limit.ErrUnknownOutcome
					f.takes(time.Minute)
				}
				release(limit.ErrUnknownOutcome) // its time ends while the two are under way
				time.Sleep(2600 * time.Millisecond)
				release(last)
				wg.Wait()
				time.Sleep(2 * time.Minute)
			})
		})
	}
}
