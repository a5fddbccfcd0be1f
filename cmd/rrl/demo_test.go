package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inBubble runs a command line on a clock of its own, so that waiting takes no
// time.
func inBubble(t *testing.T, args ...string) outcome {
	t.Helper()
	var got outcome
	synctest.Test(t, func(t *testing.T) { got = rrl(t, args...) })
	return got
}

var tryLine = regexp.MustCompile(`(?m)^ *(\d+\.\d{3})s  (?:client (\d) +)?(granted|denied ) +(\d+) left, waited (\S+)$`)

func TestDemo(t *testing.T) {
	t.Parallel()
	got := inBubble(t, "demo")
	require.Equal(t, exitYes, got.code, "%+v", got)
	require.Empty(t, got.stderr)
	require.NotContains(t, got.stdout, "\x1b", "no colours but on a terminal")
	lines := tryLine.FindAllStringSubmatch(got.stdout, -1)
	require.Len(t, lines, 30)
	for i, line := range lines[:4] {
		assert.Equal(t, []string{"granted", "granted", "granted", "denied "}[i], line[3])
		assert.Equal(t, []string{"2", "1", "0", "0"}[i], line[4])
	}
	assert.Equal(t, "100ms", lines[3][5])
	assert.Contains(t, got.stdout, "3 permits every 1s")
	assert.Contains(t, got.stdout, "30 tries, 9 granted, 21 denied in 2.")
	assert.Contains(t, got.stdout, "most granted within any 1s, by the server's record: 3 of 3")
	assert.Contains(t, got.stdout, "never over the limit")
	assert.Contains(t, got.stdout, "    1s |3")
}

func TestDemoWithSeveralClients(t *testing.T) {
	t.Parallel()
	got := inBubble(t, "demo", "--clients", "3", "--tries", "10")
	require.Equal(t, exitYes, got.code, "%+v", got)
	count := map[string]int{}
	for _, line := range tryLine.FindAllStringSubmatch(got.stdout, -1) {
		count[line[2]]++
	}
	assert.Equal(t, map[string]int{"1": 10, "2": 10, "3": 10}, count)
	assert.Contains(t, got.stdout, "3 of 3")
	assert.Contains(t, got.stdout, "never over the limit")
}

func TestDemoAsJSON(t *testing.T) {
	t.Parallel()
	got := inBubble(t, "demo", "--json", "--rate", "5/500ms", "--tries", "20", "--timeout", "50ms")
	require.Equal(t, exitYes, got.code, "%+v", got)
	var s demoSummary
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &s))
	assert.Equal(t, 20, s.Tries)
	assert.Len(t, s.Answers, 20)
	assert.Equal(t, s.Tries, s.Granted+s.Denied)
	assert.EqualValues(t, 5, s.HighestInWindow)
	require.NotNil(t, s.WithinLimit)
	assert.True(t, *s.WithinLimit)
	for _, answer := range s.Answers {
		assert.Equal(t, 1, answer.Client)
		assert.LessOrEqual(t, answer.WaitedMS, int64(50))
	}
}

func TestDemoOfALongIntervalHasAShortTimeline(t *testing.T) {
	t.Parallel()
	got := inBubble(t, "demo", "--rate", "2/1m", "--tries", "30", "--timeout", "1m")
	require.Equal(t, exitYes, got.code, "%+v", got)
	assert.Contains(t, got.stdout, "2 of 2")
	assert.LessOrEqual(t, strings.Count(got.stdout, "|\n")+strings.Count(got.stdout, "| "), timelineRows)
}

func TestDemoOnAGivenRedisLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	got := s.rrl("demo", "--rate", "3/100ms", "--tries", "10", "--timeout", "1ms")
	require.Equal(t, exitYes, got.code, "%+v", got)
	assert.Contains(t, got.stdout, "10 tries")
	assert.Positive(t, s.CommandCount())
	assert.Empty(t, s.Keys())
}

func TestDemoKeepsOffTheRedisOfTheEnvironment(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	got := rrlWith(t.Context(), map[string]string{"REDIS_URL": s.url()}, "demo", "--tries", "3")
	require.Equal(t, exitYes, got.code, "%+v", got)
	assert.Zero(t, s.TotalConnectionCount())
}

// cutOff is a writer that calls a function once it has seen some lines.
type cutOff struct {
	bytes.Buffer
	after int
	call  func()
}

func (c *cutOff) Write(p []byte) (int, error) {
	if c.after--; c.after == 0 {
		c.call()
	}
	return c.Buffer.Write(p)
}

func TestInterruptedDemoLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stdout, stderr := &cutOff{after: 4, call: cancel}, &bytes.Buffer{}
	args := []string{"demo", "--rate", "3/1h", "--timeout", "10ms", "--redis", s.url()}
	code := run(ctx, args, stdout, stderr, func(string) string { return "" })
	assert.Equal(t, exitError, code)
	assert.Equal(t, "rrl: interrupted\n", stderr.String())
	assert.Empty(t, s.Keys())
}

func TestGrantLogFindsTheFullestInterval(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		grants  []grant
		highest int64
	}{
		{nil, 0},
		{[]grant{{0, 3}, {1000, 3}, {2000, 3}}, 3},
		{[]grant{{0, 3}, {999, 1}}, 4},
		{[]grant{{0, 1}, {500, 1}, {999, 1}, {1000, 1}, {1500, 1}}, 3},
		{[]grant{{5000, 1}, {0, 2}, {5500, 2}}, 3},
	} {
		log := grantLog{interval: time.Second, grants: map[string]grant{}}
		var sum int64
		for i, one := range c.grants {
			log.grants[string(rune('a'+i))] = one
			sum += one.permits
		}
		total, highest := log.peak()
		assert.Equal(t, sum, total)
		assert.Equal(t, c.highest, highest, "%v", c.grants)
	}
}

func TestDemoOwnsUpToABrokenLimit(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	d := &demo{app: &app{stdout: &out, stderr: io.Discard}}
	d.cfg.Rate, d.cfg.Interval = 1, time.Second
	d.done = []try{{client: 1, granted: true}, {client: 1, granted: true}}
	d.grant = grantLog{interval: time.Second, grants: map[string]grant{"a": {0, 2}}}
	require.ErrorIs(t, d.report(time.Second), errNo)
	assert.Contains(t, out.String(), "OVER THE LIMIT")

	out.Reset()
	d.grant.grants = map[string]grant{"a": {0, 1}}
	require.NoError(t, d.report(time.Second))
	assert.Contains(t, out.String(), "lower bound")
	assert.NotContains(t, out.String(), "never")
}

func TestColours(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "word", (&app{}).paint(red, "word"))
	assert.Equal(t, "\x1b[31mword\x1b[0m", (&app{color: true}).paint(red, "word"))
	assert.False(t, wantsColor(&bytes.Buffer{}, func(string) string { return "" }))
}
