package limitertest

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Each runs test for each row, as a parallel subtest.
func Each[R any](t *testing.T, rows map[string]R, test func(t *testing.T, row R)) {
	t.Helper()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, row)
		})
	}
}

// Bubbles is Each with a bubble for each row.
func Bubbles[R any](t *testing.T, rows map[string]R, test func(t *testing.T, row R)) {
	t.Helper()
	Each(t, rows, func(t *testing.T, row R) {
		synctest.Test(t, func(t *testing.T) { test(t, row) })
	})
}

// Virtual is Each with a server by [redistest.Virtual] for each row.
func Virtual[R any](t *testing.T, rows map[string]R, test func(t *testing.T, rdb redistest.Client, row R)) {
	t.Helper()
	Each(t, rows, func(t *testing.T, row R) {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) { test(t, rdb, row) })
	})
}

// Tests are bodies of tests of the same kind, each of which gets a subject of its own.
type Tests[S any] map[string]func(t *testing.T, subject S)

// OnMini runs them in bubbles, each on a miniredis.
func OnMini(t *testing.T, all Tests[redistest.Client]) {
	t.Helper()
	Bubbles(t, all, func(t *testing.T, test func(t *testing.T, rdb redistest.Client)) {
		rdb, _ := redistest.Mini(t)
		test(t, rdb)
	})
}

// A SceneTest is a test of a scene of that rate.
type SceneTest[S any] struct {
	Cfg rratelimiter.Config
	Run func(t *testing.T, s S)
}

// OnScenes runs them in bubbles.
func OnScenes[S any](t *testing.T, all map[string]SceneTest[S], newScene func(t *testing.T, cfg rratelimiter.Config) S) {
	t.Helper()
	Bubbles(t, all, func(t *testing.T, test SceneTest[S]) { test.Run(t, newScene(t, test.Cfg)) })
}

// Seeds are n rows, numbered from 0.
func Seeds(n uint64) map[string]uint64 {
	all := make(map[string]uint64, n)
	for seed := range n {
		all[fmt.Sprint("seed ", seed)] = seed
	}
	return all
}
