package demo

import (
	"bytes"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/test/story"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestScenarios_ReportBrokenRule(t *testing.T) {
	t.Parallel()
	grant := func(at time.Duration, permits, most int64, reset time.Duration) answer {
		return answer{at, permits, limit.Decision{Granted: true, Limit: most, ResetAfter: reset}}
	}
	for name, c := range map[string]struct {
		rule         rule
		kept, broken []answer
	}{
		"window": {
			keptByWindow,
			[]answer{grant(0, 2, 2, 2*time.Second), grant(2*time.Second, 2, 2, 2*time.Second)},
			[]answer{grant(0, 2, 2, 2*time.Second), grant(time.Second, 1, 2, time.Second)},
		},
		"log": {
			keptByLog(2 * time.Second),
			[]answer{grant(0, 2, 2, 0), grant(2*time.Second, 2, 2, 0)},
			[]answer{grant(0, 2, 2, 0), grant(2*time.Second-1, 1, 2, 0)},
		},
		"bucket": {
			keptByBucket(1, time.Second),
			[]answer{grant(0, 2, 2, 0), grant(time.Second, 1, 2, 0)},
			[]answer{grant(0, 2, 2, 0), grant(time.Second, 3, 2, 0)},
		},
	} {
		assert.True(t, c.rule(nil), name)
		assert.True(t, c.rule(c.kept), name)
		assert.False(t, c.rule(c.broken), name)

		var out bytes.Buffer
		p := &plan{kept: "all well", lanes: []*lane{{name: "one", rule: c.rule, window: time.Second, answers: c.broken}}}
		kept, err := p.report(&output.Printer{Writer: &out}, name)
		require.NoError(t, err)
		assert.False(t, kept)
		assert.Contains(t, out.String(), "OVER THE LIMIT")
		assert.NotContains(t, out.String(), "all well")
	}
}

func TestPeakOfALane(t *testing.T) {
	t.Parallel()
	yes, no := limit.Decision{Granted: true}, limit.Decision{}
	l := lane{window: 10 * time.Second, answers: []answer{
		{0, 2, yes}, {4 * time.Second, 5, no}, {9 * time.Second, 2, yes}, {10 * time.Second, 3, yes}, {30 * time.Second, 4, yes},
	}}
	highest, from, to := l.peak()
	assert.EqualValues(t, 5, highest)
	assert.Equal(t, 9*time.Second, from)
	assert.Equal(t, 10*time.Second, to)
}

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

func TestClients_ReportBrokenLimit(t *testing.T) {
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
	r.record.grants["a"] = grant{0, 1}
	kept, err = r.report(time.Second)
	require.NoError(t, err)
	assert.True(t, kept)
	assert.Contains(t, out.String(), "lower bound")
	assert.NotContains(t, out.String(), "never")
}

// fits runs a demo on terminals of several widths, of which none may have to break a
// line, and returns what it prints if the width is not known.
func fits(t *testing.T, run func(*testing.T, *output.Printer)) (widest string) {
	t.Helper()
	for _, width := range []int{40, 60, 80, 120, 0} {
		var text bytes.Buffer
		synctest.Test(t, func(t *testing.T) { run(t, &output.Printer{Writer: &text, Color: width > 0, Width: width}) })
		widest = text.String()
		require.NotEmpty(t, widest)
		for line := range strings.Lines(widest) {
			line = strings.TrimSuffix(line, "\n")
			assert.True(t, width == 0 || output.Columns(line) <= width, "%d columns: %q", width, line)
		}
	}
	return widest
}

// What passed when is in testdata; each limiter has kept to its rule, also as JSON says.
func TestScenarios(t *testing.T) {
	t.Parallel()
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			run := func(t *testing.T, out *output.Printer) {
				t.Helper()
				kept, err := s.Run(t.Context(), out)
				require.NoError(t, err)
				assert.True(t, kept)
			}
			text := fits(t, run)
			assert.NotRegexp(t, `(?m) $`, text, "spaces at the end")
			story.Golden(t, filepath.Join("testdata", s.Name+".txt"), text)
			var out bytes.Buffer
			synctest.Test(t, func(t *testing.T) { run(t, &output.Printer{Writer: &out, JSON: true}) })
			var said scenarioSummary
			require.NoError(t, json.Unmarshal(out.Bytes(), &said))
			assert.Equal(t, []any{s.Name, true}, []any{said.Demo, said.Kept})
			limits := map[int64]bool{}
			for _, l := range said.Lanes {
				granted := 0
				for _, a := range l.Answers {
					limits[a.Limit] = true
					if a.Granted {
						granted++
					}
				}
				assert.Equal(t, []any{l.Calls, l.Granted, l.Denied, true}, []any{len(l.Answers), granted, len(l.Answers) - granted, l.Kept}, l.Name)
			}
			assert.Equal(t, map[string][]int64{
				"fixed-window": {100}, "sliding-log": {3, 6}, "token-bucket": {10, 15}, "counter": {10, 500},
			}[s.Name], slices.Sorted(maps.Keys(limits)))
		})
	}
}

func TestClientsFitTheTerminal(t *testing.T) {
	t.Parallel()
	fits(t, func(t *testing.T, out *output.Printer) {
		c := Clients{Rate: 3, Interval: time.Second, Count: 2, Tries: 30, Timeout: 100 * time.Millisecond, CallTimeout: patience}
		_, err := c.Run(t.Context(), out)
		require.NoError(t, err)
	})
}

func TestPlot_NarrowTerminalHasFewerMarks(t *testing.T) {
	t.Parallel()
	p := &plan{rule: "r", row: time.Second, mark: 1, speed: 1, left: true}
	l := &lane{name: "a lane with a long name"}
	p.lanes = []*lane{l}
	p.calls(0, 10*time.Millisecond, 40, l)
	for width, want := range map[int]plot{
		0:  {mark: 1, counted: countsAndLeft, widths: []int{41}},
		80: {mark: 1, counted: countsAndLeft, widths: []int{41}},
		60: {mark: 2, counted: countsAndLeft, widths: []int{21}},
		40: {mark: 5, counted: countsAndLeft, widths: []int{9}},
		30: {mark: 5, counted: counts, widths: []int{9}},
		15: {mark: 10, counted: noCounts, widths: []int{5}},
	} {
		got := newPlot(&output.Printer{Width: width}, p)
		assert.Equal(t, []any{want.mark, want.counted, want.widths}, []any{got.mark, got.counted, got.widths}, "%d columns", width)
	}
}
