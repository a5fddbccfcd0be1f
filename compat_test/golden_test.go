package compat_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/model"
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
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	var steps []step
	for decoder.More() {
		var s step
		require.NoError(t, decoder.Decode(&s), "%s:%d", traceFile(version), len(steps)+1)
		steps = append(steps, s)
	}
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

// followTrace checks that the models still are what was recorded, and that the trace holds
// what it is for.
func followTrace(t *testing.T, version string, steps []step) {
	t.Helper()
	h := newHistory(traceCast(version))
	v := newCoverage(h)
	for i, s := range steps {
		if err := s.check(h); err != nil {
			t.Errorf("%s:%d: %v", traceFile(version), i+1, err)
		}
		v.add(s)
		h.add(s)
	}
	require.Empty(t, v.missing())
}

// playTrace plays what this module did, and checks that it does so still.
func playTrace(t *testing.T, version string, steps []step, rdb *redis.Client, still bool) {
	t.Helper()
	h := newHistory(traceCast(version))
	st := newStage(t, h.cast, version, rdb)
	st.still = still
	differ := 0
	for i, s := range steps {
		if who := st.named(s.Who); who != nil && who.module != nil {
			got, err := st.play(t, s, h)
			require.NoError(t, err, "%s:%d", traceFile(version), i+1)
			if got.text() != s.text() {
				t.Errorf("%s:%d: this module does not do what it did; if that is meant, record anew\n%s",
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

const maxMismatches = 5

// TestGoldenMigrate migrates all that older releases have written in their traces.
func TestGoldenMigrate(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	for _, version := range goldenReleases(t) {
		if layout := model.ReleaseOf(version).Layout; layout == 0 || layout == codec.LayoutD2 {
			continue
		}
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			steps := readTrace(t, version)
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) { migrateTrace(t, version, steps, rdb) })
		})
	}
}

func migrateTrace(t *testing.T, version string, steps []step, rdb *redis.Client) {
	t.Helper()
	st := newStage(t, traceCast(version), version, rdb)
	who, name := st.named("java1").Client, st.names[limiterNames[0]]
	goes := newGo(t, rdb, rratelimiter.WithClientID(who.ID))
	for i, s := range steps {
		c := &model.Call{State: s.State.Clone(), Who: who}
		if c.Config == nil || len(c.Pair().Rows) == 0 {
			continue
		}
		line := fmt.Sprintf("%s:%d", traceFile(version), i+1)
		base := time.Now().UnixMilli()
		require.NoError(t, st.put(t.Context(), name, s.State, base))
		n, err := goes.Migrate(t.Context(), name)
		require.NoError(t, err, line)
		state := st.read(t, name)
		require.Zero(t, state.Round(base, 1), line)
		migrated, p := (&model.Call{State: state, Who: who}).Pair(), c.Pair()
		model.Beside(model.ReleaseOf(newestRedisson)).Settle(c)
		require.EqualValues(t, len(p.Rows), n, line)
		require.ElementsMatch(t, permitsAt(p), permitsAt(migrated), line)
		for _, r := range migrated.Rows {
			require.Equal(t, codec.LayoutD2, r.Layout, line)
		}
		p.Rows, migrated.Rows = nil, nil
		require.Equal(t, p, migrated, line)
	}
}

// permitsAt returns the permits of rows and their times.
func permitsAt(p *model.Pair) (all [][2]int64) {
	for _, r := range p.Rows {
		all = append(all, [2]int64{r.At, r.Permits})
	}
	return all
}
