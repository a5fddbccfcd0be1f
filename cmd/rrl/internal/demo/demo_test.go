package demo

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/story"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestScenarios_ReportBrokenRule(t *testing.T) {
	t.Parallel()
	grant := func(at time.Duration, permits int64, reset time.Duration) answer {
		return answer{at, permits, limit.Decision{Granted: true, Limit: 2, ResetAfter: reset}}
	}
	const s = time.Second
	for name, c := range map[string]struct {
		rule         rule
		kept, broken answer // behind two permits
	}{
		"window": {keptByWindow, grant(2*s, 2, 2*s), grant(s, 1, s)},
		"log":    {keptByLog(2 * s), grant(2*s, 2, 0), grant(2*s-1, 1, 0)},
		"bucket": {keptByBucket(1, s), grant(s, 1, 0), grant(s, 3, 0)},
	} {
		first := grant(0, 2, 2*s)
		assert.True(t, c.rule(nil), name)
		assert.True(t, c.rule([]answer{first, c.kept}), name)
		var out bytes.Buffer
		p := &plan{kept: "all well", lanes: []*lane{{name: "one", rule: c.rule, window: s, answers: []answer{first, c.broken}}}}
		assert.False(t, limitertest.Must(p.report(&output.Printer{Writer: &out}, name))(t))
		assert.Contains(t, out.String(), "OVER THE LIMIT")
		assert.NotContains(t, out.String(), "all well")
	}
}

func TestClients_ReportBrokenLimit(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := &clientsRun{Clients: Clients{Rate: 1, Interval: time.Second}, out: &output.Printer{Writer: &out}}
	r.done = []try{{client: 1, granted: true}, {client: 1, granted: true}}
	r.record = &record{interval: time.Second, grants: map[string]grant{"a": {0, 2}}}
	assert.False(t, limitertest.Must(r.report(time.Second))(t))
	assert.Contains(t, out.String(), "OVER THE LIMIT")
	out.Reset()
	r.record.grants["a"] = grant{0, 1}
	assert.True(t, limitertest.Must(r.report(time.Second))(t))
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
				assert.True(t, limitertest.Must(s.Run(t.Context(), out))(t))
			}
			text := fits(t, run)
			assert.NotRegexp(t, `(?m) $`, text, "spaces at the end")
			story.Golden(t, filepath.Join("testdata", s.Name+".txt"), text)
			var out bytes.Buffer
			synctest.Test(t, func(t *testing.T) { run(t, &output.Printer{Writer: &out, JSON: true}) })
			var said scenarioSummary
			require.NoError(t, json.Unmarshal(out.Bytes(), &said))
			assert.Equal(t, []any{s.Name, true}, []any{said.Demo, said.Kept})
			for _, l := range said.Lanes {
				assert.Equal(t, []any{l.Calls, l.Granted + l.Denied, true}, []any{len(l.Answers), l.Calls, l.Kept}, l.Name)
			}
		})
	}
}

func TestClientsFitTheTerminal(t *testing.T) {
	t.Parallel()
	fits(t, func(t *testing.T, out *output.Printer) {
		t.Helper()
		c := Clients{Rate: 3, Interval: time.Second, Count: 2, Tries: 30, Timeout: 100 * time.Millisecond, CallTimeout: patience}
		require.NoError(t, limitertest.Second(c.Run(t.Context(), out)))
	})
}
