package look

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEnds_SaysUntilWhen(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, time.November, 27, 15, 0, 0, 0, time.Local)
	for in, want := range map[time.Duration]string{
		19 * time.Hour:       "override until Sat 10:00 (in 19h), then 10/1m",
		10 * 24 * time.Hour:  "override until 2026-12-07 15:00 (in 240h), then 10/1m",
		0:                    "override that has ended: the next request gets 10/1m",
		-19 * 24 * time.Hour: "override that has ended: the next request gets 10/1m",
	} {
		ends := &Ends{AtMS: now.Add(in).UnixMilli(), Rate: 10, IntervalMS: 60_000}
		assert.Equal(t, want, ends.Or(Override, now))
	}
	assert.Equal(t, "default", (*Ends)(nil).Or(Default, now))
	assert.Nil(t, Fields{}.End())
}

func TestParseFields_OfAnOverride(t *testing.T) {
	t.Parallel()
	f, err := ParseFields([]any{"100", "060000", "0", "72060000", "10 60000 0 60000 5", "1790000000000 10 60000 60000"})
	require.NoError(t, err)
	assert.Equal(t, Fields{
		Rate: 100, IntervalMS: 60_000, KeepAliveMS: 60_000, Origin: Override,
		Ends: Ends{AtMS: 1_790_000_000_000, Rate: 10, IntervalMS: 60_000},
	}, f)
	_, err = ParseFields([]any{"100", "060000", "0", "0"}) // without the end: that is not asked for
	require.NoError(t, err)
	for _, field := range []any{nil, "", "1 2 3", "1 2 3 4 5", "1 2 3 x", "1 2 3 04"} {
		_, err := ParseFields([]any{"100", "060000", "0", "0", nil, field})
		require.ErrorContains(t, err, "field override", field)
	}
	for _, interval := range []string{"0060000", "0x1", "00"} {
		_, err := ParseFields([]any{"100", interval, "0", "0", nil, "1 2 3 4"})
		require.ErrorContains(t, err, "field interval", interval)
	}
}
