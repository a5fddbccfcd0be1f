package faults_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// slow has each exchange with the server take so long.
type slow time.Duration

func (s slow) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s slow) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		time.Sleep(time.Duration(s))
		return next(ctx, cmd)
	}
}

func (s slow) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		time.Sleep(time.Duration(s))
		return next(ctx, cmds)
	}
}

// Callers with deadlines shorter than a round trip must not switch a limit off for
// others: the server works.
func TestShortDeadlinesOpenNoBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		rdb.AddHook(slow(10 * time.Millisecond))
		client := limitertest.NewClient(t, rdb, rratelimiter.WithFailure(limit.FailOpen()))
		for name, l := range map[string]limit.Limiter{
			"Keyed": client.Keyed("k:", rratelimiter.PerHour(3)),
			"tokenbucket": tokenbucket.New(rdb, tokenbucket.Config{Capacity: 3, Refill: 3, Interval: time.Hour},
				limit.WithFailure(limit.FailOpen())),
		} {
			granted := 0
			for range 20 {
				for range 30 {
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
					_, _ = l.Take(ctx, "hasty", 1)
					cancel()
				}
				d, err := l.Take(t.Context(), "patient", 1)
				assert.NoError(t, err)
				if d.Granted {
					granted++
				}
			}
			assert.Equal(t, 3, granted, name)
		}
		time.Sleep(time.Minute)
	})
}

// So with a server that is far away, from the first calls on.
func TestShortDeadlinesAtADistanceOpenNoBreaker(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(rdb *redis.Client, client *rratelimiter.Client) limit.Limiter{
		"Keyed": func(_ *redis.Client, client *rratelimiter.Client) limit.Limiter {
			return client.Keyed("k:", rratelimiter.PerHour(3))
		},
		"tokenbucket": func(rdb *redis.Client, _ *rratelimiter.Client) limit.Limiter {
			return tokenbucket.New(rdb, tokenbucket.Config{Capacity: 3, Refill: 3, Interval: time.Hour}, limit.WithFailure(limit.FailOpen()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, _ := redistest.Mini(t)
				rdb.AddHook(slow(120 * time.Millisecond))
				l := open(rdb, limitertest.NewClient(t, rdb, rratelimiter.WithFailure(limit.FailOpen())))
				var wg sync.WaitGroup
				for range 2 {
					wg.Go(func() {
						for start := time.Now(); time.Since(start) < 30*time.Second; {
							ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
							_, _ = l.Take(ctx, "hasty", 1)
							cancel()
							time.Sleep(100 * time.Millisecond)
						}
					})
				}
				asked, granted := 0, 0
				for start := time.Now(); time.Since(start) < 30*time.Second; asked++ {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					d, err := l.Take(ctx, "patient", 1)
					cancel()
					assert.NoError(t, err)
					if d.Granted {
						granted++
					}
					time.Sleep(500 * time.Millisecond)
				}
				wg.Wait()
				t.Logf("%d of %d calls passed", granted, asked)
				assert.Equal(t, 3, granted)
				time.Sleep(time.Minute)
			})
		})
	}
}

// TryAcquireAll goes by the Client's policy, of one limiter too.
func TestTryAcquireAllOfOneGoesByTheClientsPolicy(t *testing.T) {
	t.Parallel()
	duringOutages(t, limit.FailOpen(), func(t *testing.T, s *outageScene) {
		strict := s.client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(5, time.Hour)),
			rratelimiter.WithFailure(limit.FailClosed()))
		all := func() (bool, error) { return s.client.TryAcquireAll(t.Context(), 1, 0, strict) }
		granted, err := all()
		assert.NoError(t, err)
		assert.True(t, granted)
		s.fail(t, s.client.RateLimiter("orders"))
		assert.True(t, atOnce(t, all))
	})
}
