package bench

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestBucketsAreASixteenthWide(t *testing.T) {
	t.Parallel()
	last := -1
	for n := uint64(0); n < math.MaxInt64/8; n = n + n/50 + 1 {
		b := bucketOf(n)
		assert.GreaterOrEqual(t, b, last)
		assert.Less(t, b, len(histogram{}.buckets))
		assert.InDelta(t, float64(n), float64(middle(b)), float64(n)/32+1)
		last = b
	}
	assert.Less(t, bucketOf(math.MaxInt64), len(histogram{}.buckets))
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	var h, other histogram
	assert.Zero(t, h.quantile(0.5))
	for i := range 900 {
		h.add(time.Duration(i+1) * time.Microsecond)
	}
	for i := range 100 {
		other.add(time.Duration(i+901) * time.Microsecond)
	}
	h.merge(&other)
	assert.EqualValues(t, 1000, h.count)
	assert.InEpsilon(t, 500*time.Microsecond, h.quantile(0.5), 0.05)
	assert.InEpsilon(t, 990*time.Microsecond, h.quantile(0.99), 0.05)
	assert.InEpsilon(t, time.Millisecond, h.quantile(1), 0.05)
}
