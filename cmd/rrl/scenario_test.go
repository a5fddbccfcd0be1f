package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/limit"
)

// toldAsJSON runs a scenario and returns its summary, which must say that each
// limiter has kept to its rule.
func toldAsJSON(t *testing.T, name string) storySummary {
	t.Helper()
	got := rrl(t, "demo", name, "--json")
	require.Equal(t, exitYes, got.code, "%+v", got)
	require.Empty(t, got.stderr)
	var s storySummary
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &s))
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
	s := toldAsJSON(t, fixedWindow)
	require.Len(t, s.Lanes, 1)
	granted, calls := s.Lanes[0].granted(0, time.Minute)
	assert.Equal(t, 120, calls)
	assert.Equal(t, 100, granted)
	assert.EqualValues(t, 199, s.Lanes[0].HighestInWindow, "the double burst")
	assert.Less(t, s.Lanes[0].HighestToMS-s.Lanes[0].HighestFromMS, int64(10_000))
}

func TestDemoOfTheSlidingLog(t *testing.T) {
	t.Parallel()
	s := toldAsJSON(t, slidingLog)
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
	s := toldAsJSON(t, tokenBucket)
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
	s := toldAsJSON(t, counter)
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

func TestDemosDrawWhatPassedWhen(t *testing.T) {
	t.Parallel()
	for name, lines := range map[string][]string{
		fixedWindow: {
			"fixed window, 100 permits every 1m",
			" 0:20  |#######                                  | 20 of 20",
			" 0:25  |.......                                  | 0 of 20",
			" 1:55  99 calls before its end, 120 after",
			"user1: 340 calls, 300 granted, 40 denied; most permits within any 1m: 199 (1:55 to 2:03)",
			"never more than 100 in one window",
		},
		slidingLog: {
			" 0:10  |#. | 1 of 2    |# | 1 of 1    |  |\n",
			" 1:50  HSET rate:limit:config limit:ann:/hello 6",
			"bob: 24 calls, 12 granted, 12 denied; most permits within any 1m: 3 (0:00 to 0:20)",
			"never over the limit in any minute",
		},
		tokenBucket: {
			"10 tokens                        10 tokens, 5 to borrow\n",
			" 0:01  |....       | 0 of 1, 3 left     |####       | 1 of 1, 4 left\n",
			"never more than the bucket held",
		},
		counter: {
			" 0:25  |##########.......... | 10 of 20  |.................... | 0 of 20\n",
			"500/30s by user: 700 calls, 600 granted, 100 denied; most permits within any 30s: 500",
			"never more than the limit in one window",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := inBubble(t, "demo", name)
			require.Equal(t, exitYes, got.code, "%+v", got)
			assert.Empty(t, got.stderr)
			assert.NotContains(t, got.stdout, "\x1b", "no colours but on a terminal")
			for _, line := range lines {
				assert.Contains(t, got.stdout, line)
			}
			for line := range strings.Lines(got.stdout) {
				assert.Equal(t, strings.TrimRight(line, " \n"), strings.TrimSuffix(line, "\n"), "spaces at the end")
			}
		})
	}
}

func TestDemosOfOtherLimitersBringTheirServer(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, sc := range scenarios {
		got := s.rrl("demo", sc.name)
		assert.Equal(t, exitError, got.code)
		assert.Contains(t, got.stderr, "try rrl take "+sc.name)
		assert.Empty(t, got.stdout)

		got = rrl(t, "demo", sc.name, "--help")
		assert.Contains(t, got.stdout, "Examples:")
		got = rrl(t, "demo", sc.name, "more")
		assert.Contains(t, got.stderr, `unexpected argument "more"`)
	}
	got := rrlWith(t.Context(), map[string]string{"REDIS_URL": s.url()}, "demo", slidingLog, "--json")
	assert.Equal(t, exitYes, got.code)
	assert.Zero(t, s.TotalConnectionCount())
}

func TestAnInterruptedScenarioEndsAtOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stdout, stderr := &cutOff{after: 3, call: cancel}, &bytes.Buffer{}
	code := run(ctx, []string{"demo", fixedWindow}, stdout, stderr, func(string) string { return "" })
	assert.Equal(t, exitError, code)
	assert.Equal(t, "rrl: interrupted\n", stderr.String())
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
		a := &app{stdout: &out}
		s := &story{kept: "all well", lanes: []*lane{{name: "one", rule: c.rule, window: time.Second, answers: c.broken}}}
		require.ErrorIs(t, a.conclude(name, s), errNo)
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
