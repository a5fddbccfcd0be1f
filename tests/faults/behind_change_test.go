package faults_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A change goes in a flight of its own, and may take all of a call's time. Who waits behind it for a flight has a call's
// time too, from when the caller came.
func TestHung_CallerBehindAChangeEndsInTime(t *testing.T) {
	t.Parallel()
	const callTime = 900 * time.Millisecond
	type calls struct {
		take, reset func(key string) error
		first       time.Duration // how long the flight before takes
	}
	for _, punctual := range []bool{false, true} {
		for name, open := range map[string]func(t *testing.T, rdb redistest.Client) calls{
			"RateLimiter": func(t *testing.T, rdb redistest.Client) calls {
				t.Helper()
				c := limitertest.NewClient(t, rdb, rratelimiter.WithCallTimeout(callTime))
				of := func(key string) *rratelimiter.RateLimiter {
					return limitertest.ByDefault(c, key, limitertest.Hourly(100))
				}
				return calls{
					take:  func(key string) error { return limitertest.Second(of(key).TryAcquire(context.Background(), 1, 0)) },
					reset: func(key string) error { return of(key).Reset(context.Background()) },
					first: callTime * 3 / 10,
				}
			},
			"fixedwindow": func(_ *testing.T, rdb redistest.Client) calls {
				l := fixedwindow.New(rratelimiter.New(rdb, rratelimiter.WithCallTimeout(callTime)), fixedwindow.Config{Limit: 100, Window: time.Hour})
				return calls{
					take:  func(key string) error { return limitertest.Second(l.Take(context.Background(), key, 1)) },
					reset: func(key string) error { return l.Reset(context.Background(), key) },
					first: callTime * 8 / 10,
				}
			},
		} {
			t.Run(fmt.Sprintf("%s, ContextTimeoutEnabled %v", name, punctual), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					_, m := redistest.Mini(t)
					rdb := redistest.MiniClient(t, m, &redistest.Options{PoolSize: 2, ContextTimeoutEnabled: punctual, MaxRetries: -1})
					c := open(t, rdb)
					var hangs atomic.Bool
					rdb.AddHook(redistest.Hook(func(ctx context.Context, cmds []redis.Cmder, next func() error) error {
						switch {
						case !hangs.Load():
						case strings.Contains(fmt.Sprint(cmds), "first"):
							time.Sleep(c.first)
						default:
							select {
							case <-ctx.Done():
							case <-time.After(3 * time.Second):
							}
							return redistest.Fail(cmds, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded})
						}
						return next()
					}))
					for _, key := range []string{"first", "behind"} {
						assert.NoError(t, c.take(key))
					}
					hangs.Store(true)
					go func() { _ = c.take("first") }()
					go func() {
						time.Sleep(c.first - 5*time.Millisecond)
						assert.Error(t, c.reset("changed"))
					}()
					time.Sleep(time.Millisecond)
					start := time.Now()
					assert.ErrorIs(t, c.take("behind"), limit.ErrUnavailable)
					assert.LessOrEqual(t, time.Since(start), callTime)
					time.Sleep(10 * time.Second) // calls under way end
				})
			})
		}
	}
}
