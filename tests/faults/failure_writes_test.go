package faults_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// refusing is a hook that answers some scripts with an error.
type refusing struct {
	redistest.Hook

	err error
	of  func(sha any) bool
}

func (r refusing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && r.of(cmd.Args()[1]) {
			cmd.SetErr(r.err)
			return r.err
		}
		return next(ctx, cmd)
	}
}

// writes reports whether a script writes: a server that refuses writes answers the others.
func writes(sha any) bool { return sha == lua.Acquire.SHA || sha == lua.Probe.SHA }

// waits returns the share of its time that a caller waits who asks every 10 ms.
func waits(t *testing.T, l *rratelimiter.RateLimiter, lasting time.Duration) float64 {
	t.Helper()
	waited, start := time.Duration(0), time.Now()
	for time.Since(start) < lasting {
		before := time.Now()
		limitertest.MustAcquire(t, l, 1)
		waited += time.Since(before)
		time.Sleep(10 * time.Millisecond)
	}
	return float64(waited) / float64(time.Since(start))
}

// After the first calls, callers of a server that refuses to write wait for no answer.
func TestAServerThatRefusesToWriteIsNotAsked(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"READONLY", "NOREPLICAS", "OOM", "MISCONF"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			duringOutages(t, limit.FailOpen(), func(t *testing.T, s *outageScene) {
				l := s.client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(7, time.Hour)))
				limitertest.MustAcquire(t, l, 1)
				s.rdb.AddHook(refusing{err: answered(code + " no"), of: writes})
				for range 3 {
					limitertest.MustAcquire(t, l, 1)
				}
				share := waits(t, l, time.Minute)
				t.Logf("%s: callers wait %.1f %% of the time", code, 100*share)
				assert.Less(t, share, 0.03, "only who begins a probe waits, for 5 ms")
			})
		})
	}
}

// Calls go to a server that answers probes and decides nothing ever more rarely, and soon
// again once it has decided one.
func TestReturnsThatFailAreEverFurtherApart(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailOpen(), func(t *testing.T, s *outageScene) {
		l := s.client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(1, time.Hour)))
		limitertest.MustAcquire(t, l, 1)
		down := true
		s.rdb.AddHook(refusing{err: answered("READONLY no"), of: func(sha any) bool { return down && sha == lua.Acquire.SHA }})
		share := waits(t, l, 10*time.Minute)
		t.Logf("callers wait %.1f %% of the time", 100*share)
		assert.Less(t, share, 0.12)

		down = false
		for back := time.Now(); limitertest.Try(t, l, 1); time.Sleep(10 * time.Millisecond) {
			require.Less(t, time.Since(back), 31*time.Second)
		}
		down = true
		for range 3 {
			limitertest.MustAcquire(t, l, 1)
		}
		down = false
		time.Sleep(200 * time.Millisecond)
		limitertest.MustRefuse(t, l, 1)
	})
}
