package histogram_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/histogram"
)

func TestPercentile(t *testing.T) {
	t.Parallel()
	var h histogram.Histogram
	assert.Zero(t, h.Percentile(50))
	var other histogram.Histogram
	for i := range 500 {
		h.Add(time.Duration(i+1) * time.Microsecond)
		other.Add(time.Duration(i+501) * time.Microsecond)
	}
	h.Merge(&other)
	assert.EqualValues(t, 1000, h.Count())
	for p, want := range map[float64]time.Duration{
		50: 500 * time.Microsecond, 99: 990 * time.Microsecond, 99.9: 999 * time.Microsecond, 100: time.Millisecond,
	} {
		assert.InEpsilon(t, want, h.Percentile(p), 0.01, "p%v", p)
	}
}

func TestDurationsOfEachSize(t *testing.T) {
	t.Parallel()
	for d := time.Duration(1); d < time.Minute; d = d*5/4 + 1 {
		var h histogram.Histogram
		h.Add(d)
		assert.InDelta(t, d, h.Percentile(100), 1+float64(d)/128, "%v", d)
	}
	var h histogram.Histogram
	h.Add(-time.Second)
	h.Add(time.Hour)
	text, err := h.MarshalText()
	require.NoError(t, err)
	var again histogram.Histogram
	require.NoError(t, again.UnmarshalText(nil))
	require.NoError(t, again.UnmarshalText(text))
	assert.LessOrEqual(t, again.Percentile(50), time.Duration(1))
	assert.Greater(t, again.Percentile(100), time.Minute)
	for _, text := range []string{"x", "1", "1:x", "-1:1", "99999:1"} {
		assert.Error(t, h.UnmarshalText([]byte(text)), text)
	}
}
