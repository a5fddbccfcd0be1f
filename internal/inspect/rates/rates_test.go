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
)

// planned is a plan to give each of n limiters 5 permits a second.
func planned(t *testing.T, rdb redistest.Client, n int, check func(context.Context, Change) (bool, error)) *Plan {
	t.Helper()
	var found []*look.Short
	for i := range n {
		name := fmt.Sprint("l", i)
		require.NoError(t, rdb.HSet(t.Context(), name, "rate", 10, "interval", 1000, "type", 0).Err())
		found = append(found, &look.Short{Name: name, Fields: look.Fields{Rate: 10, IntervalMS: 1000, Origin: look.Override}})
	}
	return NewPlan(found, func(rratelimiter.Config) rratelimiter.Config { return rratelimiter.PerSecond(5) }, false, check,
		func(name string, err error) string { return strings.ToUpper(name) + " " + err.Error() })
}

// A server that decides nothing is not asked for all of them; the rest can be tried later.
func TestPlan_StopsIfRedisDoesNotDecide(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	p := planned(t, rdb, stepSize+5, func(context.Context, Change) (bool, error) { return true, nil })
	err := p.Step(t.Context(), rdb, func(context.Context, Change) (bool, error) { return false, limit.ErrUnavailable })
	require.ErrorIs(t, err, limit.ErrUnavailable)
	assert.ErrorContains(t, err, "stopped after 100 calls")
	assert.Equal(t, []int{stepSize, FirstNames, 5}, []int{p.Failed, len(p.Failures), p.Left()})
	assert.Equal(t, "L", p.Failures[0].Error[:1])
	require.ErrorIs(t, p.Step(limitertest.EndedContext(t), rdb, nil), context.Canceled)
	require.NoError(t, p.Step(t.Context(), rdb, func(context.Context, Change) (bool, error) { return false, errors.New("no") }))
	assert.Zero(t, p.Left())
	assert.Equal(t, time.Second, p.First[0].Config.Interval)
}

// A slow server gets smaller steps, none of which fails for want of time.
func TestPlan_StepEndsWithinItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		slow := func(ctx context.Context, _ Change) (bool, error) {
			if ctx.Err() == nil {
				time.Sleep(time.Second)
			}
			return true, ctx.Err()
		}
		p := planned(t, rdb, stepSize, slow)
		var left []int
		for p.Left() > 0 {
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			require.NoError(t, p.Step(ctx, rdb, slow))
			cancel()
			left = append(left, p.Left())
		}
		assert.Greater(t, len(left), 1)
		assert.Equal(t, []int{stepSize, 0}, []int{p.Changed, p.Failed}, "left after each step: %v", left)
	})
}
