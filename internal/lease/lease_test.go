package lease_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/lease"
)

func TestALeaseHoldsItsPermitsForItsLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := lease.New(5, time.Now(), time.Second, nil)
		take := func(permits, want int64, wantLate bool) {
			left, late := a.Take(permits)
			assert.Equal(t, want, left)
			assert.Equal(t, wantLate, late)
		}
		take(3, 2, false)
		take(3, -1, false) // more than are left
		time.Sleep(time.Second - time.Nanosecond)
		take(1, 1, false)
		time.Sleep(time.Nanosecond)
		take(1, -1, true) // its life is over
		assert.EqualValues(t, 1, a.Add(1))
		assert.EqualValues(t, 1, a.Left())
		assert.EqualValues(t, 1, a.End())
		assert.EqualValues(t, -1, a.Add(1), "its rest has been returned")
		assert.Zero(t, a.End())
	})
}
