package concurrency_test

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

const (
	ms      = time.Millisecond
	forever = limitertest.Forever
)

func TestMain(m *testing.M) { limitertest.Main(m) }

// failed checks with what calls failed, and when.
func failed(t *testing.T, target error, at time.Duration, callers ...*limitertest.Caller) {
	t.Helper()
	for _, c := range callers {
		c.RequireEnd(t, target, at)
	}
}
