package faults_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A lost answer to a joint call that carries its script, because the server did not
// know it, costs its callers one attempt, and those who flew with it nothing.
func TestAJointCallThatIsLostWithItsScript(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]redistest.Action{"no answer": redistest.Swallow, "a broken connection": redistest.DropAnswer} {
		for _, punctual := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ContextTimeoutEnabled %v", name, punctual), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { loseJointCall(t, lost, punctual) })
			})
		}
	}
}

func loseJointCall(t *testing.T, lost redistest.Action, punctual bool) {
	t.Helper()
	direct, m := redistest.Mini(t)
	proxy := redistest.MiniProxy(t, m)
	c := limitertest.NewClient(t, proxy.Client(t, &redis.Options{ContextTimeoutEnabled: punctual}))
	const rate, callers = 10, 40
	limiters := make([]*rratelimiter.RateLimiter, callers)
	for i := range limiters {
		limiters[i] = c.RateLimiter(fmt.Sprint("limiter", i), rratelimiter.WithDefault(limitertest.Every(rate, time.Hour)))
		limitertest.MustAcquire(t, limiters[i], 1)
		limitertest.MustAcquire(t, limiters[i], 1) // its short answer says that the limiter is shared
	}
	var sent, losses atomic.Int32
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		switch {
		case sent.Add(1) <= 2: // while these two are under way the others gather
			return redistest.Pass.After(10 * time.Millisecond)
		case c.Name() == "eval" && c.Args[1] == lua.AcquireMany.Source && losses.Add(1) == 1:
			return lost
		}
		return redistest.Pass
	})
	var wg sync.WaitGroup
	start := time.Now()
	for i, l := range limiters {
		wg.Go(func() {
			if i%10 == 9 { // figures are not asked for together
				d, err := l.Take(t.Context(), 1)
				assert.NoError(t, err)
				assert.True(t, d.Granted)
				assert.Less(t, time.Since(start), 100*time.Millisecond)
				return
			}
			ok, err := l.TryAcquire(t.Context(), 1, 0)
			assert.NoError(t, err)
			assert.True(t, ok)
			assert.Less(t, time.Since(start), 1500*time.Millisecond)
		})
		synctest.Wait()
	}
	wg.Wait()
	require.Positive(t, losses.Load())
	for _, l := range limiters {
		assert.EqualValues(t, 3, limitertest.InUse(t, direct, limitertest.KeysOf(l).Permits))
		assert.EqualValues(t, rate-3, limitertest.Available(t, l))
	}
}
