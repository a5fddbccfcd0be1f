package compat_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Two releases of Redisson, older first, and Go on the same limiters.
var (
	// mixable are releases that share limiters with each other.
	mixable = [][2]string{
		{"3.12.3", "3.13.2"}, {"3.20.1", "4.7.0"}, {"3.13.6", "3.15.5"}, {"3.15.5", "3.16.0"},
		{"3.17.7", "3.27.2"}, {"3.27.2", "4.7.0"}, {"3.35.0", "4.7.0"}, {"3.45.1", "4.3.1"},
	}

	// immiscible are releases that do not read, or not count, each other's rows.
	immiscible = [][2]string{
		{"3.15.5", "3.16.8"}, {"3.16.8", "4.7.0"}, {"3.12.3", "3.15.5"}, {"3.12.3", "4.7.0"},
		{"3.15.5", "3.17.7"}, {"3.15.5", "4.7.0"}, {"3.16.8", "3.20.1"},
	}
)

// eachFleet runs test beside each pair: beside two without -releases, else beside
// those of which -releases names both.
func eachFleet(t *testing.T, pairs [][2]string, test func(t *testing.T, older, newer javaPeer)) {
	t.Helper()
	for i, pair := range pairs {
		missing := func(version string) bool { return !slices.Contains(releases(t), version) }
		if *releasesFlag == "" && i > 1 || *releasesFlag != "" && slices.ContainsFunc(pair[:], missing) {
			continue
		}
		t.Run(pair[0]+"+"+pair[1], func(t *testing.T) { test(t, newPeer(t, pair[0]), newPeer(t, pair[1])) })
	}
}

func TestFleetTurns(t *testing.T) {
	t.Parallel()
	eachFleet(t, mixable, func(t *testing.T, older, newer javaPeer) {
		playTurns(t, fleet{javas: []javaPeer{older, newer}, oldest: older.release.Version})
	})
}

// TestFleetsThatBreak shows what the two Redissons do to each other, and that Go
// beside them breaks neither of them that would not break without it. Where
// Go is the first to ask when rows have run out, none breaks at all.
func TestFleetsThatBreak(t *testing.T) { //nolint:paralleltest // few JVMs at a time
	eachFleet(t, immiscible, func(t *testing.T, older, newer javaPeer) {
		pair := older.release.Version + "+" + newer.release.Version
		rdb, url := redistest.Redis(t), redistest.Shared(t).URL()
		javas := []service{older.service(t, url), newer.service(t, url)}
		goes := newGo(t, rdb, sharing(older.release.Version)...)
		for first, second := range []int{1, 0} {
			asks := fmt.Sprintf("%s asks first", []javaPeer{older, newer}[first].release.Version)
			breaks := func(what string, takes, sweeps bool) bool {
				// What a row is read as may depend on its random bytes.
				answers := make(map[string]int)
				for range 10 {
					answers[afterAnInterval(t, javas, first, second, goes, takes, sweeps)]++
				}
				record(t, pair, asks, what, answers)
				t.Logf("%s, %s, %s: %v", pair, asks, what, answers)
				return strings.Contains(fmt.Sprint(answers), "error")
			}
			alone := breaks("without Go", false, false)
			assert.False(t, breaks("beside Go", true, false) && !alone, "Go breaks what did not break without it")
			assert.False(t, breaks("Go asks before them", true, true), "broken though Go has swept")
		}
	})
}

// afterAnInterval has two Javas take permits, and Go too where it takes; and
// returns what they are told when they ask again an interval later, behind Go
// where it sweeps.
func afterAnInterval(t *testing.T, javas []service, first, second int, goes service, takes, sweeps bool) string {
	t.Helper()
	cfg := rratelimiter.PerMinute(10)
	name := redistest.Name(t)
	require.True(t, javas[0].TrySetRate(name, cfg))
	for _, java := range javas {
		require.True(t, java.Try(name, 2))
	}
	if takes {
		require.True(t, goes.Try(name, 3))
	}
	passTime(t, redistest.Redis(t), name, cfg.Interval+time.Second)
	if sweeps {
		require.True(t, goes.Try(name, 3))
	}
	var answers []string
	for _, i := range []int{first, second} {
		granted, err := javas[i].take(t.Context(), name, 1)
		answer := fmt.Sprint(granted)
		if thrown, ok := errors.AsType[*javadriver.ThrownError](err); ok {
			answer = "error"
			for _, known := range []string{"data string too short", "arithmetic on a nil value"} {
				if strings.Contains(thrown.Message, known) {
					answer += ": " + known
				}
			}
		} else {
			require.NoError(t, err)
		}
		answers = append(answers, answer)
	}
	return strings.Join(answers, ", ")
}
