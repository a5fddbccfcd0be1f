package main

import (
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/demo"
)

// inBubble runs a demo on a clock of its own, so that waiting takes no time.
func inBubble(t *testing.T, args ...string) (got outcome) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { got = rrlWith(t.Context(), nil, args...) })
	require.Equal(t, exitYes, got.code, "%+v", got)
	require.Empty(t, got.stderr)
	require.NotContains(t, got.stdout, "\x1b", "no colours but on a terminal")
	return got
}

var tryLine = regexp.MustCompile(`(?m)^ *(\d+\.\d{3})s  (?:client (\d) +)?(granted|denied ) +(\d+) left, waited (\S+)$`)

func TestDemo(t *testing.T) {
	t.Parallel()
	got := inBubble(t, "demo")
	require.Len(t, tryLine.FindAllString(got.stdout, -1), 30, "%+v", got) // the first of which docs/demo.svg shows
	for _, want := range []string{
		"3 permits every 1s", "30 tries, 9 granted, 21 denied in 2.", "never over the limit", "    1s |3",
		"most granted within any 1s, by the server's record: 3 of 3",
	} {
		assert.Contains(t, got.stdout, want)
	}

	got = inBubble(t, "demo", "--clients", "3", "--tries", "10")
	count := map[string]int{}
	for _, line := range tryLine.FindAllStringSubmatch(got.stdout, -1) {
		count[line[2]]++
	}
	assert.Equal(t, map[string]int{"1": 10, "2": 10, "3": 10}, count)
	assert.Contains(t, got.stdout, "3 of 3")
	assert.Contains(t, got.stdout, "never over the limit")

	assert.Contains(t, inBubble(t, "demo", "--rate", "30/1s", "--tries", "20").stdout, "    0s |+", "ten and more")

	// A long interval has a short timeline.
	got = inBubble(t, "demo", "--rate", "2/1m", "--tries", "30", "--timeout", "1m")
	assert.Contains(t, got.stdout, "2 of 2")
	assert.LessOrEqual(t, strings.Count(got.stdout, "|\n")+strings.Count(got.stdout, "| "), 40)
}

func TestDemoAsJSON(t *testing.T) {
	t.Parallel()
	got := inBubble(t, "demo", "--json", "--rate", "5/500ms", "--tries", "20", "--timeout", "50ms")
	var s struct {
		Tries, Granted, Denied int
		HighestInWindow        int64 `json:"highest_in_window"`
		WithinLimit            *bool `json:"within_limit"`
		Answers                []struct {
			Client   int   `json:"client"`
			WaitedMS int64 `json:"waited_ms"`
		}
	}
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

// A demo on a given Redis leaves nothing, also if it is interrupted, and none uses the
// Redis of the environment.
func TestServersOfDemos(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	byEnv := servers{t: t, env: map[string]string{"REDIS_URL": s.addr}}
	for _, line := range []string{"demo --tries 3", "demo sliding-log --json", "demo fixed-window"} {
		got := byEnv.rrl("%s", line)
		require.Equal(t, exitYes, got.code, "%+v", got)
		assert.Empty(t, got.stderr)
		assert.NotContains(t, got.stdout, "\x1b", "no colours but on a terminal")
		assert.Zero(t, s.TotalConnectionCount())
	}
	got := s.rrl("demo --rate 30/100ms --tries 10 --timeout 10s")
	require.Equal(t, exitYes, got.code, "%+v", got)
	assert.Contains(t, got.stdout, "10 tries")
	assert.Positive(t, s.CommandCount())
	assert.Empty(t, s.Keys())
	interrupted(t, append(s.flags, "demo", "--rate", "9/1h", "--timeout", "10s")...)
	assert.Empty(t, s.Keys())
	interrupted(t, "demo", "fixed-window")

	for _, sc := range demo.Scenarios() {
		s.fails("try rrl take "+sc.Name, "demo", sc.Name)
		s.fails(`unexpected argument "more"`, "demo", sc.Name, "more")
		assert.Contains(t, rrl(t, "demo %s --help", sc.Name).stdout, "Examples:")
	}
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

// interrupted runs a command that is interrupted once it has printed something.
func interrupted(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stderr bytes.Buffer
	code := run(ctx, args, &cutOff{after: 3, call: cancel}, &stderr, func(string) string { return "" })
	assert.Equal(t, exitError, code, args)
	assert.Equal(t, "rrl: interrupted\n", stderr.String(), args)
}
