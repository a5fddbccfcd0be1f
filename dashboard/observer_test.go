package dashboard

import (
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/limit"
)

func TestOldRefusalsNoLongerCount(t *testing.T) {
	t.Parallel()
	r, now := &refusals{}, time.Unix(1000, 0)
	for range 5 {
		r.add(now)
	}
	assert.InDelta(t, 0.5, r.pace(now.Add((refusalSpan-1)*time.Second)), 1e-9)
	assert.Zero(t, r.pace(now.Add(refusalSpan*time.Second)))
	r.add(now.Add(refusalSpan * time.Second))
	assert.InDelta(t, 0.1, r.pace(now.Add(refusalSpan*time.Second)), 1e-9, "the second's place is used again")
	assert.Equal(t, int64(6), r.total.Load())
}

func TestObserver_CountsWhatComesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &Observer{}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for i := range 1000 {
					name := strconv.Itoa(i % 10)
					o.Decided(t.Context(), limit.Decided{Limiter: name, Outcome: limit.Refused})
					o.Decided(t.Context(), limit.Decided{Limiter: name, Outcome: limit.Granted})
					o.Decided(t.Context(), limit.Decided{Limiter: "failed", Outcome: limit.Failed})
				}
			})
		}
		all.Wait()
		for i := range 10 {
			total, pace, known := o.of(strconv.Itoa(i))
			assert.True(t, known)
			assert.Equal(t, int64(800), total)
			assert.InDelta(t, 80, pace, 1e-9)
		}
		_, _, known := o.of("failed")
		assert.False(t, known)
	})
}

func TestObserver_CountsSoManyLimiters(t *testing.T) {
	t.Parallel()
	o := &Observer{}
	for i := range maxObserved + 1 {
		o.Decided(t.Context(), limit.Decided{Limiter: strconv.Itoa(i), Outcome: limit.Refused})
	}
	_, _, known := o.of(strconv.Itoa(maxObserved - 1))
	assert.True(t, known)
	_, _, known = o.of(strconv.Itoa(maxObserved))
	assert.False(t, known)
}

// What a decision costs its caller. All others count too.
func BenchmarkObserver(b *testing.B) {
	for _, d := range []limit.Decided{{Limiter: "api", Outcome: limit.Granted}, {Limiter: "api", Outcome: limit.Refused}} {
		b.Run(string(d.Outcome), func(b *testing.B) {
			o := &Observer{}
			b.ReportAllocs()
			b.RunParallel(func(next *testing.PB) {
				for next.Next() {
					o.Decided(b.Context(), d)
				}
			})
		})
	}
}
