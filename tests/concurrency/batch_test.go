package concurrency_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Requests beyond one batch's bounds go in the next, and all are answered.
func TestMoreThanABatchHolds(t *testing.T) {
	t.Parallel()
	for name, permits := range map[string]func(i int) int64{
		"requests": func(int) int64 { return 1 },
		"runs":     func(i int) int64 { return int64(i%2 + 1) },
		"permits":  func(int) int64 { return 1 << 30 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, m := redistest.Mini(t)
				proxy := redistest.MiniProxy(t, m)
				c := rratelimiter.New(proxy.Client(t, nil))
				l := c.RateLimiter(redistest.Name(t), rratelimiter.WithDefault(rratelimiter.PerHour(1<<40)))
				gate := make(chan struct{})
				proxy.OnCommand(redistest.Nth(1, l.Name(), redistest.Pass.When(gate)))
				count := 300
				if name == "requests" {
					count = lane.MaxRequests + 10
				}
				results := make(chan bool, count)
				for i := range count {
					go func() {
						ok, err := l.TryAcquire(t.Context(), permits(i), 0)
						results <- ok && err == nil
					}()
				}
				synctest.Wait()
				close(gate)
				sum := int64(0)
				for i := range count {
					assert.True(t, <-results)
					sum += permits(i)
				}
				require.NoError(t, c.Close(t.Context()))
				value, err := rdb.Get(t.Context(), limitertest.KeysOf(l).Value).Int64()
				require.NoError(t, err)
				assert.Equal(t, int64(1<<40)-sum, value)
				members, err := rdb.ZRange(t.Context(), limitertest.KeysOf(l).Permits, 0, -1).Result()
				require.NoError(t, err)
				for _, member := range members {
					parsed, err := codec.Parse(member)
					require.NoError(t, err)
					sum -= int64(parsed.Permits)
				}
				assert.Zero(t, sum, "the members hold what was granted")
			})
		})
	}
}

// answering is a Redis that knows no limiter and answers every script at once.
type answering struct{}

func (answering) Pipeline() redis.Pipeliner { panic("no pipeline is wanted") }

func (answering) Process(_ context.Context, cmd redis.Cmder) error {
	reply := any(int64(0))
	if cmd.Args()[1] == lua.Acquire.SHA {
		taken := int64(0)
		// The sum stands behind the five keys and the member, but for one permit.
		if args := cmd.Args(); len(args) == 9 || args[9] == "1" {
			taken = 1
		}
		reply = []any{int64(9), int64(1), taken, int64(1000), int64(1000), int64(0), int64(50)}
	}
	cmd.(interface{ SetVal(val any) }).SetVal(reply)
	return nil
}

func TestNamesUsedOnceAreForgotten(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	synctest.Test(t, func(t *testing.T) {
		c := rratelimiter.New(answering{})
		plain, cancellable := context.WithoutCancel(t.Context()), t.Context()
		for i := range 10_000 {
			l := c.RateLimiter("name" + strconv.Itoa(i))
			ctx := cancellable
			if i%2 == 0 {
				ctx = plain
			}
			ok, err := l.TryAcquire(ctx, 1, 0)
			require.NoError(t, err)
			require.True(t, ok)
			if i%10 > 2 {
				continue
			}
			ok, err = l.TryAcquire(ctx, 2, time.Duration(i%3)*40*time.Millisecond)
			require.NoError(t, err)
			require.False(t, ok)
			require.NoError(t, l.Release(ctx, 1))
			require.NoError(t, l.SetRate(ctx, rratelimiter.PerHour(1)))
			_, err = l.AvailablePermits(ctx)
			require.NoError(t, err)

			ended, cancel := context.WithTimeout(ctx, time.Millisecond)
			require.ErrorIs(t, l.Acquire(ended, 2), context.DeadlineExceeded)
			cancel()
		}
		// A last worker may still be on its way out; it needs no time for that.
		synctest.Wait()
		assert.Zero(t, engine.Of(c).Groups())
		assert.Zero(t, engine.Of(c).Active())
	})
}

// What a call allocates of its own: a closure that comes to need the heap shows
// here. The race detector adds one or two.
//
//nolint:paralleltest // others' allocations would count
func TestAllocationsOfACallAlone(t *testing.T) {
	l := rratelimiter.New(answering{}).RateLimiter("orders")
	for _, tc := range []struct {
		ctx  context.Context
		most float64
	}{{context.WithoutCancel(t.Context()), 15}, {t.Context(), 15}} {
		allocations := testing.AllocsPerRun(200, func() {
			if ok, err := l.TryAcquire(tc.ctx, 1, 0); err != nil || !ok {
				t.Error(ok, err)
			}
		})
		assert.LessOrEqual(t, allocations, tc.most)
	}
}
