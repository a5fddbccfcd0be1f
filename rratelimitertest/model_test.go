package rratelimitertest_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/rratelimitertest"
)

// Callers with timeouts of all lengths are told the same outside a bubble as in one.
func TestOutsideABubbleItIsAsInOne(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			outside := history(t, seed)
			var inside []string
			synctest.Test(t, func(t *testing.T) { inside = history(t, seed) })
			assert.Equal(t, inside, outside)
		})
	}
}

// history returns what callers are told of an exhausted limiter, and what is left.
func history(t *testing.T, seed uint64) []string {
	t.Helper()
	draw := rand.New(rand.NewPCG(seed, 0))
	env := rratelimitertest.New(t)
	l := exhausted(t, env, rratelimiter.Config{Rate: 5, Interval: 10 * time.Second, KeepAlive: 15 * time.Second})
	told := &log{}
	const callers = 30
	for i := range callers {
		// No two moments are the same: those of one moment have no order.
		permits, timeout := 1+draw.Int64N(5), time.Duration(1+draw.IntN(60))*time.Second+time.Duration(i+1)*time.Millisecond
		told.call(fmt.Sprintf("%02d", i), func() (bool, error) { return l.TryAcquire(t.Context(), permits, timeout) })
		env.AwaitWaiting(i + 1)
	}
	for range 20 {
		env.Advance(time.Duration(draw.IntN(8000)) * time.Millisecond)
	}
	env.Advance(time.Minute)
	told.wg.Wait()
	all := told.told()
	slices.Sort(all)
	exists, err := l.Exists(t.Context())
	require.NoError(t, err)
	return append(all, fmt.Sprint(exists))
}
