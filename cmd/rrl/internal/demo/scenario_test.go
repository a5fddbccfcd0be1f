package demo

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/limit"
)

// runAsJSON runs a scenario and returns its summary, which must say that each
// limiter has kept to its rule.
func runAsJSON(t *testing.T, name string) scenarioSummary {
	t.Helper()
	i := slices.IndexFunc(Scenarios(), func(s Scenario) bool { return s.Name == name })
	require.NotEqual(t, -1, i)
	var out bytes.Buffer
	kept, err := scenarios[i].Run(t.Context(), &output.Printer{Writer: &out, JSON: true})
	require.NoError(t, err)
	assert.True(t, kept)
	var s scenarioSummary
	require.NoError(t, json.Unmarshal(out.Bytes(), &s))
	assert.Equal(t, name, s.Demo)
	assert.True(t, s.Kept)
	for _, l := range s.Lanes {
		assert.Len(t, l.Answers, l.Calls)
		assert.Equal(t, l.Calls, l.Granted+l.Denied)
		assert.True(t, l.Kept, l.Name)
	}
	return s
}

// granted counts the grants of a lane from a moment on, up to another.
func (l laneSummary) granted(from, to time.Duration) (granted, calls int) {
	for _, a := range l.Answers {
		if a.AtMS >= from.Milliseconds() && a.AtMS < to.Milliseconds() {
			calls++
			if a.Granted {
				granted++
			}
		}
	}
	return granted, calls
}

func TestDemoOfTheFixedWindow(t *testing.T) {
	t.Parallel()
	s := runAsJSON(t, "fixed-window")
	require.Len(t, s.Lanes, 1)
	granted, calls := s.Lanes[0].granted(0, time.Minute)
	assert.Equal(t, 120, calls)
	assert.Equal(t, 100, granted)
	assert.EqualValues(t, 199, s.Lanes[0].HighestInWindow, "the double burst")
	assert.Less(t, s.Lanes[0].HighestToMS-s.Lanes[0].HighestFromMS, int64(10_000))
}

func TestDemoOfTheSlidingLog(t *testing.T) {
	t.Parallel()
	s := runAsJSON(t, "sliding-log")
	require.Len(t, s.Lanes, 3)
	for i, highest := range []int64{6, 3, 3} {
		assert.Equal(t, highest, s.Lanes[i].HighestInWindow)
	}
	ann := s.Lanes[0]
	granted, _ := ann.granted(0, time.Minute)
	assert.Equal(t, 3, granted)
	for _, a := range ann.Answers {
		want := int64(3)
		if a.AtMS >= 110_000 {
			want = 6
		}
		assert.Equal(t, want, a.Limit, "at %d ms", a.AtMS)
	}
	assert.Zero(t, s.Lanes[2].Denied)
	assert.Len(t, s.Notes, 2)
}

func TestDemoOfTheTokenBucket(t *testing.T) {
	t.Parallel()
	s := runAsJSON(t, "token-bucket")
	require.Len(t, s.Lanes, 2)
	strict, lender := s.Lanes[0], s.Lanes[1]
	assert.Equal(t, strict.Calls, lender.Calls)
	assert.Greater(t, lender.Granted, strict.Granted)
	costs := map[int64]bool{}
	for i, a := range strict.Answers {
		costs[a.Permits] = true
		assert.EqualValues(t, 10, a.Limit)
		assert.EqualValues(t, 15, lender.Answers[i].Limit)
	}
	assert.Greater(t, len(costs), 3)
}

func TestDemoOfTheCounter(t *testing.T) {
	t.Parallel()
	s := runAsJSON(t, "counter")
	require.Len(t, s.Lanes, 2)
	for second := range 35 {
		from := time.Duration(second) * time.Second
		granted, calls := s.Lanes[0].granted(from, from+time.Second)
		assert.Equal(t, 20, calls)
		assert.Equal(t, 10, granted, "second %d", second)
	}
	granted, calls := s.Lanes[1].granted(0, 30*time.Second)
	assert.Equal(t, 600, calls)
	assert.Equal(t, 500, granted)
}

func TestScenariosOwnUpToABrokenRule(t *testing.T) {
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
