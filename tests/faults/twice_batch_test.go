package faults_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Requests that share a call count once if it comes twice, whichever answer is heard.
func TestBatch_DuplicateCountsOnce(t *testing.T) {
	t.Parallel()
	for name, requests := range map[string][]limitertest.Request{
		"Reserve":                             {limitertest.ReserveFor(3), limitertest.ReserveFor(3), limitertest.ReserveFor(3)},
		"Reserve behind one that fits not":    {limitertest.ReserveFor(9), limitertest.ReserveFor(3), limitertest.ReserveFor(3)},
		"Reserve with holds":                  {limitertest.ReserveFor(3, hold), limitertest.ReserveFor(3), limitertest.ReserveFor(3, shorter)},
		"TryAcquire":                          try(3, 3, 3),
		"TryAcquire behind one that fits not": try(9, 3, 3),
		"TryAcquire and TakeUpTo":             {limitertest.TryFor(3), limitertest.UpToFor(20), limitertest.TryFor(1)},
		"TakeUpTo":                            {limitertest.UpToFor(5), limitertest.UpToFor(20)},
		"Take":                                {limitertest.TakeFor(3), limitertest.TakeFor(5)},
	} {
		eachLayout(t, name, func(t *testing.T, version string) {
			for _, inUse := range []int64{0, 2, 4} {
				for heard, twice := range map[string]redistest.Action{"first": redistest.Duplicate, "last": redistest.DuplicateLast} {
					w := newWireInUse(t, 10, inUse, version)
					w.OnScript(func(s *lua.Script, _ int) redistest.Action {
						if s == lua.Acquire {
							return twice
						}
						return redistest.Pass
					})
					got := w.AskAny(t, requests...)
					w.OnScript(func(*lua.Script, int) redistest.Action { return redistest.Pass })
					w.CheckHeld(t, inUse+limitertest.Sum(got), fmt.Sprintf("the %s answer is heard, %d in use", heard, inUse))
				}
			}
		})
	}
}

// A TryAcquire of all permits finds its own member where a refusal would look for the oldest.
func TestTryAcquire_DuplicateOfAllPermitsIsGranted(t *testing.T) {
	t.Parallel()
	eachLayout(t, "all", func(t *testing.T, version string) {
		w := newWireInUse(t, 10, 0, version)
		limitertest.MustAcquire(t, w.Other, 10)
		limitertest.MustRefuse(t, w.RateLimiter, 10) // the next refusal is a plain one
		require.NoError(t, w.Other.Release(t.Context(), 10))
		w.OnScript(func(*lua.Script, int) redistest.Action { return redistest.DuplicateLast })
		limitertest.MustAcquire(t, w.RateLimiter, 10)
		w.OnScript(func(*lua.Script, int) redistest.Action { return redistest.Pass })
		w.Proxy.Settle(t)
		w.CheckHeld(t, 10, "once")
	})
}

// A copy of two reservations that comes late changes nothing, though more is free by then than when
// they were decided.
func TestReserve_LateCopyOfTwoChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWireInUse(t, 10, 6, "4.7.0")
	several := func() int64 {
		keys := w.Keys.List()
		answer, err := w.Redis.Eval(t.Context(), lua.Acquire.Source, keys,
			"\x10an id 16 bytes..\x05\x00\x00\x00", 8, "", "s", "", "", 0, 5, 1, 3, 1).Int64Slice()
		require.NoError(t, err)
		return answer[2]
	}
	assert.EqualValues(t, 3, several(), "one of two")
	require.NoError(t, w.Other.Release(t.Context(), 6))
	assert.EqualValues(t, 3, several())
	assert.EqualValues(t, 7, limitertest.Available(t, w.Other))
	w.CheckHeld(t, 3, "once")
}
