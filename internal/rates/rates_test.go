package rates

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/look"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

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
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, p.Step(ctx, rdb, nil), context.Canceled)
	require.NoError(t, p.Step(t.Context(), rdb, func(context.Context, Change) (bool, error) { return false, errors.New("no") }))
	assert.Zero(t, p.Left())
	assert.Equal(t, time.Second, p.First[0].Config.Interval)
}
