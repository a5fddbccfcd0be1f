package demo

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
)

// fits runs a demo on terminals of several widths, of which none may have to
// break a line.
func fits(t *testing.T, run func(*testing.T, *output.Printer)) {
	t.Helper()
	for _, width := range []int{40, 60, 80, 120} {
		t.Run(strconv.Itoa(width), func(t *testing.T) {
			t.Parallel()
			var text bytes.Buffer
			synctest.Test(t, func(t *testing.T) {
				run(t, &output.Printer{Writer: &text, Color: true, Width: width})
			})
			require.NotEmpty(t, text.String())
			for line := range strings.Lines(text.String()) {
				line = strings.TrimSuffix(line, "\n")
				assert.LessOrEqual(t, output.Columns(line), width, "%q", line)
			}
		})
	}
}

func TestScenariosFitTheTerminal(t *testing.T) {
	t.Parallel()
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			fits(t, func(t *testing.T, out *output.Printer) {
				kept, err := s.Run(t.Context(), out)
				require.NoError(t, err)
				assert.True(t, kept)
			})
		})
	}
}

func TestClientsFitTheTerminal(t *testing.T) {
	t.Parallel()
	fits(t, func(t *testing.T, out *output.Printer) {
		c := Clients{Rate: 3, Interval: time.Second, Count: 2, Tries: 30, Timeout: 100 * time.Millisecond}
		_, err := c.Run(t.Context(), out)
		require.NoError(t, err)
	})
}

func TestAPlotOfANarrowTerminalHasFewerMarks(t *testing.T) {
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
