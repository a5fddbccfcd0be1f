package faults_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// An undo whose first request was lost gives back what others have left of the grant.
func TestUndoRepeatedAfterAReleaseOfSome(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]redistest.Action{"request cut": redistest.Cut, "answer dropped": redistest.DropAnswer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false)
			keyed := w.Client.Keyed("", limitertest.Hourly(10))
			_, undo, err := keyed.TakeReturnable(t.Context(), w.Name(), 3)
			require.NoError(t, err)
			require.NoError(t, w.Other.Release(t.Context(), 1))
			w.OnScript(func(s *lua.Script, n int) redistest.Action {
				if s == lua.GiveBack && n == 1 {
					return lost
				}
				return redistest.Pass
			})
			require.NoError(t, undo(t.Context()))
			assert.Equal(t, 2, w.Sent(lua.GiveBack))
			w.CheckHeld(t, 0, "undone")
		})
	}
}

// Grants of one call share a member. An undo whose request was lost is not mistaken for one
// that has run because another has shrunk the member meanwhile.
func TestUndosOfOneCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const callers = 10
		s := limitertest.NewHeldScene(t, limitertest.Every(100, time.Hour))
		keyed := s.Client.Keyed("", limitertest.Every(100, time.Hour))
		letGo := s.Hold(t, lua.Acquire, 1)
		first := s.StartTryAcquire(t.Context(), 1, 0)
		synctest.Wait()
		undo := make([]func(context.Context) error, callers)
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				var err error
				_, undo[i], err = keyed.TakeReturnable(t.Context(), s.Name(), 1)
				assert.NoError(t, err)
			})
		}
		synctest.Wait()
		letGo()
		wg.Wait()
		require.Equal(t, "true at 0s", first.Outcome())
		require.EqualValues(t, 2, s.Mini.ZCard(t.Context(), limitertest.KeysOf(s.RateLimiter).Permits).Val(), "the first, and all others as one")

		s.Proxy.OnCommand(redistest.Nth(1, lua.GiveBack.SHA, redistest.Cut))
		for i := range 4 {
			wg.Go(func() { assert.NoError(t, undo[i](t.Context())) })
		}
		wg.Wait()
		s.CheckInUse(t, 100, 1+callers-4)
	})
}
