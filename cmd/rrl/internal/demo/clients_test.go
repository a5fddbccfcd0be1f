package demo

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
)

func TestRecordFindsTheFullestInterval(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		grants  []grant
		highest int64
	}{
		{nil, 0},
		{[]grant{{0, 3}, {1000 * ms, 3}, {2000 * ms, 3}}, 3},
		{[]grant{{0, 3}, {999 * ms, 1}}, 4},
		{[]grant{{0, 1}, {500 * ms, 1}, {999 * ms, 1}, {1000 * ms, 1}, {1500 * ms, 1}}, 3},
		{[]grant{{5000 * ms, 1}, {0, 2}, {5500 * ms, 2}}, 3},
	} {
		r := record{interval: time.Second, grants: map[string]grant{}}
		var sum int64
		for i, one := range c.grants {
			r.grants[string(rune('a'+i))] = one
			sum += one.permits
		}
		total, highest := r.peak()
		assert.Equal(t, sum, total)
		assert.Equal(t, c.highest, highest, "%v", c.grants)
	}
}

func TestDemoOwnsUpToABrokenLimit(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := &clientsRun{Clients: Clients{Rate: 1, Interval: time.Second}, out: &output.Printer{Writer: &out}}
	r.done = []try{{client: 1, granted: true}, {client: 1, granted: true}}
	r.record = &record{interval: time.Second, grants: map[string]grant{"a": {0, 2}}}
	kept, err := r.report(time.Second)
	require.NoError(t, err)
	assert.False(t, kept)
	assert.Contains(t, out.String(), "OVER THE LIMIT")

	out.Reset()
	r.record.grants = map[string]grant{"a": {0, 1}}
	kept, err = r.report(time.Second)
	require.NoError(t, err)
	assert.True(t, kept)
	assert.Contains(t, out.String(), "lower bound")
	assert.NotContains(t, out.String(), "never")
}
