package lease_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/lease"
)

func TestLease_HoldsPermitsForItsLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := lease.New(5, time.Now(), time.Second)
		left, unused := a.Take(3)
		assert.Equal(t, []int64{2, 0}, []int64{left, unused})
		time.Sleep(time.Second - time.Nanosecond)
		left, unused = a.Take(1)
		assert.Equal(t, []int64{1, 0}, []int64{left, unused})
		time.Sleep(time.Nanosecond)
		left, unused = a.Take(1)
		assert.Equal(t, []int64{-1, 0}, []int64{left, unused}, "its life is over")
		assert.True(t, a.Return(1))
		assert.EqualValues(t, 2, a.Left())
		assert.EqualValues(t, 2, a.End())
		assert.False(t, a.Return(1), "its rest has gone back")
		assert.Zero(t, a.End())
	})
}

// A lease that has too little for a request ends, and what it has left is the caller's to give back, once.
func TestLease_EndsIfItHasTooLittle(t *testing.T) {
	t.Parallel()
	a := lease.New(5, time.Now(), time.Hour)
	a.Take(3)
	left, unused := a.Take(3)
	assert.Negative(t, left)
	assert.EqualValues(t, 2, unused)
	left, unused = a.Take(1)
	assert.Negative(t, left)
	assert.Zero(t, unused)
	assert.False(t, a.Return(3))
	assert.Zero(t, a.Left())
	assert.Zero(t, a.End())

	a = lease.New(5, time.Now(), time.Hour)
	a.Take(5)
	assert.True(t, a.Return(2), "it is empty and has not ended")
	left, unused = a.Take(2)
	assert.Zero(t, left)
	assert.Zero(t, unused)
}

// Whatever happens at once, each permit is used by one caller, or goes back once.
func TestLease_CountsEachPermitOnce(t *testing.T) {
	t.Parallel()
	for range 200 {
		const size = 1000
		a := lease.New(size, time.Now(), time.Hour)
		var used, back atomic.Int64
		var all sync.WaitGroup
		for g := range int64(4) {
			all.Go(func() {
				for i := range int64(100) {
					permits := (g + i) % 7
					left, unused := a.Take(permits)
					back.Add(unused)
					switch {
					case left < 0:
					case i%5 == 0 && a.Return(permits):
					case i%5 == 0:
						back.Add(permits)
					default:
						used.Add(permits)
					}
					if g == 0 && i == 90 {
						back.Add(a.End())
					}
				}
			})
		}
		all.Wait()
		back.Add(a.End())
		assert.EqualValues(t, size, used.Load()+back.Load())
	}
}

// What it costs to take a permit that all others take too.
func BenchmarkTake(b *testing.B) {
	l := lease.New(1<<61, time.Now(), time.Hour)
	b.RunParallel(func(next *testing.PB) {
		for next.Next() {
			l.Take(1)
		}
	})
}
