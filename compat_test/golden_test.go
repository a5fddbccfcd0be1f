package compat_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Golden traces: histories of each release of Redisson beside this module,
// recorded once, so that a machine without Java too tests against what each
// release really did. Each step stands for itself: the state before it is put
// into Redis, and what comes of the step is compared.

var recordFlag = flag.Bool("record", false, "TestGolden records its traces anew, of all releases or those of -releases")

// goldenReleases returns those whose traces are to be played.
func goldenReleases(t *testing.T) []string {
	t.Helper()
	if *releasesFlag == "" && *redissonVersion == newestRedisson && !testing.Short() {
		return matrix
	}
	named := releases(t)
	return slices.DeleteFunc(slices.Clone(matrix), func(version string) bool { return !slices.Contains(named, version) })
}

func traceFile(version string) string { return filepath.Join("testdata", "golden", version+".jsonl") }

func readTrace(t *testing.T, version string) []step {
	t.Helper()
	text, err := os.ReadFile(traceFile(version))
	require.NoError(t, err)
	var steps []step
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var s step
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(&s), "%s:%d", traceFile(version), len(steps)+1)
		steps = append(steps, s)
	}
	require.NoError(t, lines.Err())
	return steps
}

func writeTrace(t *testing.T, version string, steps []step) {
	t.Helper()
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	for _, s := range steps {
		require.NoError(t, encoder.Encode(s))
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(traceFile(version)), 0o755))
	require.NoError(t, os.WriteFile(traceFile(version), text.Bytes(), 0o644))
}

func TestGolden(t *testing.T) {
	t.Parallel()
	for _, version := range goldenReleases(t) {
		t.Run(version, func(t *testing.T) {
			if *recordFlag {
				// One JVM at a time, and no file but of a whole history.
				steps := recordTrace(t, version)
				if !t.Failed() {
					writeTrace(t, version, steps)
				}
			} else {
				t.Parallel()
			}
			steps := readTrace(t, version)
			t.Run("models", func(t *testing.T) {
				t.Parallel()
				followTrace(t, version, steps)
			})
			t.Run("coverage", func(t *testing.T) {
				t.Parallel()
				requireCovered(t, version, steps)
			})
			t.Run("standing clock", func(t *testing.T) {
				t.Parallel()
				redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
					playTrace(t, version, steps, rdb, true)
				})
			})
			t.Run("redis", func(t *testing.T) {
				t.Parallel()
				playTrace(t, version, steps, redistest.Redis(t), false)
			})
		})
	}
}

// followTrace checks that the models still are what was recorded.
func followTrace(t *testing.T, version string, steps []step) {
	t.Helper()
	c := newCast(version)
	var h history
	for i, s := range steps {
		if err := s.check(c, h); err != nil {
			t.Errorf("%s:%d: %v", traceFile(version), i+1, err)
		}
		h.add(s)
	}
}

// check tells how the step differs from all that the model of who does it
// allows.
func (s step) check(c *cast, h history) error {
	if s.Who == "" {
		state, err := s.happen(c, h.states[s.On])
		if err == nil && (outcome{State: state}).text() != s.text() {
			err = fmt.Errorf("after %q: %s\nwanted: %s", s.Do, s.text(), outcome{State: state}.text())
		}
		return err
	}
	outcomes, err := s.models(c, h.states, h.last+1)
	if err != nil {
		return err
	}
	wanted := make([]string, len(outcomes))
	for i, out := range outcomes {
		wanted[i] = out.text()
	}
	if slices.Contains(wanted, s.text()) {
		return nil
	}
	return fmt.Errorf("the model of what %s does, and the trace, differ\n%s", s.Who,
		s.differs(h, strings.Join(wanted, "\nor     "), "by the model"))
}

// differs shows a step beside another outcome of it.
func (s step) differs(h history, got, whose string) string {
	call := s
	call.outcome = outcome{}
	text, err := json.Marshal(call)
	if err != nil {
		return err.Error()
	}
	var before strings.Builder
	for _, name := range s.involved() {
		fmt.Fprintf(&before, "\nbefore, %s: %s", name, outcome{State: h.states[name]}.text())
	}
	return fmt.Sprintf("step: %s%s\ntrace: %s\n%s: %s", text, before.String(), s.text(), whose, got)
}

// playTrace plays what this module did, and checks that it does so still.
func playTrace(t *testing.T, version string, steps []step, rdb *redis.Client, still bool) {
	t.Helper()
	st := newStage(t, version, rdb)
	st.still = still
	var h history
	differ := 0
	for i, s := range steps {
		if who := st.named(s.Who); who != nil && who.module != nil {
			got, err := st.play(t, s, h.states, h.last+1)
			require.NoError(t, err, "%s:%d", traceFile(version), i+1)
			if got.text() != s.text() {
				t.Errorf("%s:%d: this module does not do what it did; where that is meant, record anew\n%s",
					traceFile(version), i+1, s.differs(h, got.text(), "now"))
				if differ++; differ == maxMismatches {
					break
				}
			}
		}
		h.add(s)
	}
	st.requireNoOtherKeys(t)
}
