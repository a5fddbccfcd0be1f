package faults_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
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
