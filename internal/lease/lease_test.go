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

func TestASizerFollowsDemand(t *testing.T) {
	t.Parallel()
	s := &lease.Sizer{Most: 50}
	now := time.Now()
	ask := func(permits int64, after time.Duration) int64 {
		now = now.Add(after)
		ahead, _ := s.Ask(permits, now)
		return ahead
	}
	_, figures := s.Ask(1, now)
	assert.True(t, figures, "the interval is not known")
	s.Figures(1600, time.Second)
	assert.Equal(t, 50*time.Millisecond, s.Life())

	assert.EqualValues(t, 1, ask(1, time.Millisecond))
	assert.EqualValues(t, 2, ask(1, time.Millisecond), "the last is used up")
	assert.EqualValues(t, 4, ask(1, time.Millisecond))
	assert.EqualValues(t, 4, ask(1, time.Second), "and lasts now")
	s.Used(3)
	assert.EqualValues(t, 3, ask(1, time.Second))
	for range 10 {
		ask(1, time.Millisecond)
	}
	assert.EqualValues(t, 50, ask(1, time.Millisecond), "a lease's most")
	s.Figures(161, time.Second)
	assert.EqualValues(t, 10, ask(1, time.Second), "a 16th of what is free")
	s.Scarce()
	assert.EqualValues(t, 5, ask(1, time.Second))
	s.Figures(10, time.Second)
	assert.Zero(t, ask(1, time.Second))
}

func TestALifeIsHalfOfTheIntervalAtMost(t *testing.T) {
	t.Parallel()
	s := &lease.Sizer{Most: 1, Want: time.Second}
	assert.Zero(t, s.Life())
	s.Figures(1, time.Hour)
	assert.Equal(t, time.Second, s.Life())
	s.Figures(1, time.Second)
	assert.Equal(t, 500*time.Millisecond, s.Life())
}
