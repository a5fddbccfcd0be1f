package rates

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/rratelimitertest"
)

// A server that decides nothing is not asked for all of them; the rest can be tried later.
func TestPlan_StopsIfRedisDoesNotDecide(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	var found []*look.Short
	for i := range stepSize + 5 {
		name := fmt.Sprint("l", i)
		require.NoError(t, rdb.HSet(t.Context(), name, "rate", 10, "interval", 1000, "type", 0).Err())
		found = append(found, &look.Short{Name: name, Fields: look.Fields{Rate: 10, IntervalMS: 1000, Origin: look.Override}})
	}
	fine := func(context.Context, Change) (bool, error) { return true, nil }
	p := NewPlan(found, func(rratelimiter.Config) rratelimiter.Config { return rratelimiter.PerSecond(5) }, false, fine,
		func(name string, err error) string { return strings.ToUpper(name) + " " + err.Error() })
	err := p.Step(t.Context(), rdb, func(context.Context, Change) (bool, error) { return false, limit.ErrUnavailable })
	require.ErrorIs(t, err, limit.ErrUnavailable)
	assert.ErrorContains(t, err, "stopped after 100 calls")
	assert.Equal(t, []int{stepSize, FirstNames, 5}, []int{p.Failed, len(p.Failures), p.Left()})
	assert.Equal(t, "L", p.Failures[0].Error[:1])
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, p.Step(ctx, rdb, nil), context.Canceled)
	require.NoError(t, p.Step(t.Context(), rdb, func(context.Context, Change) (bool, error) { return false, errors.New("no") }))
	assert.Zero(t, p.Left())
	assert.Equal(t, time.Second, p.First[0].Config.Interval)
}

// A slow server gets smaller steps, none of which fails for want of time.
func TestPlan_StepEndsWithinItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := rratelimitertest.New(t)
		var found []*look.Short
		for i := range stepSize {
			name := fmt.Sprint("l", i)
			require.NoError(t, env.Redis.HSet(t.Context(), name, "rate", 10, "interval", 1000, "type", 0).Err())
			found = append(found, &look.Short{Name: name, Fields: look.Fields{Rate: 10, IntervalMS: 1000, Origin: look.Override}})
		}
		slow := func(ctx context.Context, _ Change) (bool, error) {
			if ctx.Err() == nil {
				time.Sleep(time.Second)
			}
			return true, ctx.Err()
		}
		p := NewPlan(found, func(rratelimiter.Config) rratelimiter.Config { return rratelimiter.PerSecond(5) }, false, slow,
			func(_ string, err error) string { return err.Error() })
		var left []int
		for p.Left() > 0 {
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			require.NoError(t, p.Step(ctx, env.Redis, slow))
			cancel()
			left = append(left, p.Left())
		}
		assert.Greater(t, len(left), 1)
		assert.Equal(t, []int{stepSize, 0}, []int{p.Changed, p.Failed}, "left after each step: %v", left)
	})
}

// A plan promises what its changes do, for limiters whose rate can be read.
func TestPlan_ChecksRatesAsTheChangeDoes(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	client := rratelimiter.New(rdb, rratelimiter.WithCallTimeout(time.Minute))
	var names []string
	for name, cfg := range map[string]rratelimiter.Config{
		"alive while full":  {Rate: 10, Interval: time.Minute, KeepAlive: time.Minute},
		"alive for longer":  {Rate: 10, Interval: time.Minute, KeepAlive: 2 * time.Minute},
		"alive long enough": {Rate: 10, Interval: time.Minute, KeepAlive: 2 * time.Hour},
		"alive for good":    {Rate: 10, Interval: time.Minute},
	} {
		require.NoError(t, client.RateLimiter(name).SetRate(t.Context(), cfg))
		names = append(names, name)
	}
	found, err := look.ReadShort(t.Context(), rdb, names)
	require.NoError(t, err)
	p := NewPlan(found, func(now rratelimiter.Config) rratelimiter.Config { return Keep(now, rratelimiter.PerHour(5)) }, false,
		func(ctx context.Context, c Change) (bool, error) {
			return client.RateLimiter(c.Name).UpdateRate(ctx, c.Config)
		},
		func(_ string, err error) string { return err.Error() })

	assert.Equal(t, []int{3, 4, 1}, []int{p.Planned(), p.Meant(), p.Failed})
	require.Len(t, p.Failures, 1)
	assert.Equal(t, "alive for longer", p.Failures[0].Name)
	assert.Contains(t, p.Failures[0].Error, "keep-alive time 2m0s is shorter than the interval 1h0m0s")
	require.NoError(t, p.Step(t.Context(), rdb, func(ctx context.Context, c Change) (bool, error) {
		return client.RateLimiter(c.Name).UpdateRate(ctx, c.Config)
	}))
	assert.Equal(t, []int{3, 1, 0}, []int{p.Changed, p.Failed, p.Left()})
	for name, want := range map[string]time.Duration{"alive while full": time.Hour, "alive long enough": 2 * time.Hour, "alive for good": 0} {
		cfg, err := client.RateLimiter(name).Config(t.Context())
		require.NoError(t, err)
		assert.Equal(t, rratelimiter.Config{Rate: 5, Interval: time.Hour, KeepAlive: want}, cfg, name)
	}
}

func TestUseDefault(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	useDefault := func(name string) (bool, error) { return UseDefault(t.Context(), rdb, name, time.Minute) }
	require.NoError(t, rratelimiter.New(rdb, limitertest.Patient()).RateLimiter("orders").SetRate(t.Context(), rratelimiter.PerHour(5)))
	for _, want := range []bool{true, false} {
		changed, err := useDefault("orders")
		require.NoError(t, err)
		assert.Equal(t, want, changed)
	}
	_, err := useDefault("none")
	require.ErrorIs(t, err, rratelimiter.ErrNotInitialized)
	require.NoError(t, rdb.HSet(t.Context(), "broken", "rate", "x", "interval", 1, "type", 0).Err())
	_, err = useDefault("broken")
	require.ErrorIs(t, err, limit.ErrCorrupt)
	assert.ErrorContains(t, err, `key "broken": rate is no integer: x`)
}
