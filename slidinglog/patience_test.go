package slidinglog_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// A decision that takes several calls may take longer than one: each has the call
// timeout, since the server answers.
func TestADecisionOfManyCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		fill(t, rdb, "log", time.Now().Add(2*time.Hour), 5000)
		proxy := redistest.MiniProxy(t, m)
		proxy.OnCommand(func(c redistest.Command) redistest.Action {
			if c.Name() != "eval" && c.Name() != "evalsha" {
				return redistest.Pass
			}
			return redistest.Pass.After(900 * time.Millisecond)
		})
		l := slidinglog.New(proxy.Client(t, &redis.Options{ReadTimeout: time.Minute}), slidinglog.Config{Limit: 10_000, Window: time.Hour})
		start := time.Now()
		d, err := l.Take(t.Context(), "log", 1)
		require.NoError(t, err)
		assert.True(t, d.Granted)
		assert.Greater(t, time.Since(start), 4*time.Second)
	})
}
