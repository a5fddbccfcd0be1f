package compat_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

// TestFairness has a Redisson poll for single permits, and take each soon after it
// comes back. In Go one caller waits for many permits, and others of its process,
// which came later, for one each.
//
// The one for many comes first until it has waited for an interval. From then on
// the others are asked for too, so that one that can't be served holds nobody up
// longer.
func TestFairness(t *testing.T) {
	t.Parallel()
	for _, many := range []int64{10, 20} {
		synctest.Test(t, func(t *testing.T) {
			s := limitertest.NewScene(t, limitertest.Every(20, 500*time.Millisecond))
			go func() {
				for java := (limitertest.Java{Redis: s.Redis, Name: s.Name()}); s.Now() < 2*time.Second; time.Sleep(7 * time.Millisecond) {
					_, _, err := java.TryAcquire(t, 1)
					assert.NoError(t, err)
				}
			}()
			s.Until(300 * time.Millisecond)
			first := s.StartTryAcquire(t.Context(), many, 1500*time.Millisecond)
			s.Until(301 * time.Millisecond)
			var others []*limitertest.Caller
			for range 5 {
				others = append(others, s.StartTryAcquire(t.Context(), 1, limitertest.Forever))
			}
			s.Until(3 * time.Second)
			assert.Equal(t, "false at 1.8s", first.Outcome())
			for i, other := range others {
				at := 1004*time.Millisecond + time.Duration(i)*7*time.Millisecond
				assert.Equal(t, fmt.Sprintf("true at %v", at), other.Outcome())
			}
		})
	}
}
