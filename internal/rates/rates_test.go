package rates

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/look"
	"github.com/rratelimiter/rratelimiter/internal/nodes"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A change is stopped between two steps, and another plan goes on with the rest. What others
// changed or deleted meanwhile stays as it is.
func TestStoppedHalfWayAndRunAgain(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		const all = 2*stepSize + 50
		prefix := redistest.Name(t)
		client := limitertest.NewClient(t, rdb)
		limiter := func(i int) *rratelimiter.RateLimiter { return client.RateLimiter(fmt.Sprintf("%s:%03d", prefix, i)) }
		pipe := rdb.Pipeline()
		for i := range all {
			pipe.HSet(t.Context(), limiter(i).Name(), "rate", 10, "interval", 3_600_000, "type", i%2)
		}
		require.NoError(t, limitertest.Second(pipe.Exec(t.Context())))
		limitertest.MustAcquire(t, limiter(0), 6)
		plan := func() *Plan {
			var found []*look.Short
			masters, err := nodes.Masters(t.Context(), rdb)
			require.NoError(t, err)
			for _, node := range masters {
				require.NoError(t, look.EachPage(t.Context(), node, rdb, prefix+":*", func(_ int, page []*look.Short) { found = append(found, page...) }))
			}
			return NewPlan(found, func(now rratelimiter.Config) rratelimiter.Config {
				now.Rate = 5
				return now
			}, false, func(_ string, err error) string { return err.Error() })
		}
		change := func(ctx context.Context, c Change) (bool, error) {
			return client.RateLimiter(c.Name).UpdateRate(ctx, c.Config, rratelimiter.KeepState())
		}
		first := plan()
		require.NoError(t, first.Step(t.Context(), rdb, change))
		assert.Equal(t, []int{all, stepSize, all - stepSize, 1}, []int{first.Todo(), first.Changed, first.Left(), first.Over})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, first.Step(ctx, rdb, change), context.Canceled)
		assert.Equal(t, all-stepSize, first.Left())

		second := plan()
		assert.Equal(t, []int{stepSize, all - stepSize}, []int{second.Already, second.Todo()})
		rest := slices.DeleteFunc(slices.Clone(second.todo), func(c Change) bool { return c.Name == limiter(0).Name() })
		other, gone := rest[0].Name, rest[1].Name
		require.NoError(t, client.RateLimiter(other).SetRate(t.Context(), rratelimiter.PerHour(77)))
		require.NoError(t, limitertest.Second(client.RateLimiter(gone).Delete(t.Context())))
		for second.Left() > 0 {
			require.NoError(t, second.Step(t.Context(), rdb, change))
		}
		assert.Equal(t, []int{all - stepSize - 2, 1, 1, 0}, []int{second.Changed, second.Meanwhile, second.Gone, second.Failed})
		free, err := limiter(0).AvailablePermits(t.Context())
		require.NoError(t, err)
		assert.Zero(t, free, "6 are in use")
		assert.Equal(t, []int{all - 2, 1}, []int{plan().Already, plan().Todo()})
	})
}

// A server that decides nothing is not asked for all of them; the rest can be tried later.
func TestCallsThatRedisDoesNotDecide(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	var found []*look.Short
	for i := range stepSize + 5 {
		name := fmt.Sprint("l", i)
		require.NoError(t, rdb.HSet(t.Context(), name, "rate", 10, "interval", 1000, "type", 0).Err())
		found = append(found, &look.Short{Name: name, Fields: look.Fields{Rate: 10, IntervalMS: 1000}})
	}
	p := NewPlan(found, func(rratelimiter.Config) rratelimiter.Config { return rratelimiter.PerSecond(5) }, false,
		func(name string, err error) string { return strings.ToUpper(name) + " " + err.Error() })
	err := p.Step(t.Context(), rdb, func(context.Context, Change) (bool, error) { return false, limit.ErrUnavailable })
	require.ErrorIs(t, err, limit.ErrUnavailable)
	assert.ErrorContains(t, err, "stopped after 100 calls")
	assert.Equal(t, []int{stepSize, FirstNames, 5}, []int{p.Failed, len(p.Failures), p.Left()})
	assert.Equal(t, "L", p.Failures[0].Error[:1])
	require.NoError(t, p.Step(t.Context(), rdb, func(context.Context, Change) (bool, error) { return false, errors.New("no") }))
	assert.Zero(t, p.Left())
	assert.Equal(t, time.Second, p.First[0].Config.Interval)
}
