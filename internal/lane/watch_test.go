package lane_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/lane"
)

type expiry struct{ at time.Time }

func (e *expiry) Expire(now time.Time) { e.at = now }

// A request that comes to the Watch late, since it has waited elsewhere, ends when its
// own time is over, not with those that the Watch knew before.
func TestWatchEndsEachRequestInItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = time.Second
		var mu sync.Mutex
		w := lane.NewWatch(&mu, timeout)
		began := time.Now()
		since := []time.Duration{0, -900 * time.Millisecond, -300 * time.Millisecond, -2 * time.Second}
		expired := make([]expiry, len(since))
		mu.Lock()
		for i := range since {
			w.Add(&lane.Pending{}, &expired[i], began.Add(since[i]))
		}
		mu.Unlock()
		time.Sleep(2 * timeout)
		synctest.Wait()
		for i := range since {
			assert.Equal(t, max(0, since[i]+timeout), expired[i].at.Sub(began), "since %v", since[i])
		}
	})
}
