package compat_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	layout "github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// The matrix: what is tested beside every release. Each release has a JVM for
// itself, and where it matters how fast the machine is, one after the other.

// eachRelease has test run beside each release of Redisson that is asked for.
func eachRelease(t *testing.T, test func(*testing.T, javaPeer)) {
	t.Helper()
	for _, version := range releases(t) {
		t.Run(version, func(t *testing.T) { test(t, newPeer(t, version)) })
	}
}

// newPeer starts a JVM with a release of Redisson.
func newPeer(t *testing.T, version string) javaPeer {
	t.Helper()
	return javaPeer{startDriver(t, version), model.ReleaseOf(version)}
}

// service returns a service of the JVM that uses the server at url.
func (peer javaPeer) service(t *testing.T, url string) service {
	t.Helper()
	return service{nil, peer.driver.open(t, url), t}
}

// record adds a line to the table of results that has the test's name.
func record(t *testing.T, columns ...any) {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	redistest.Record(t, test, columns...)
}

// sharing is what Go is told where it shares limiters with a release. From 3.35
// on nothing need be said.
func sharing(version string) []rratelimiter.Option {
	if !model.Older(version, "3.35.0") {
		return nil
	}
	return []rratelimiter.Option{rratelimiter.WithRedissonVersion(version)}
}

func TestTurns(t *testing.T) {
	t.Parallel()
	for _, version := range releases(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			peer := newPeer(t, version)
			playTurns(t, fleet{javas: []javaPeer{peer, peer}, oldest: version})
		})
	}
}

// TestRowsTakenForPermits: Redisson 3.16.2 to 3.34 counts rows where it should
// count permits, when a value above the rate is to be put right. What Go writes
// for such a release must not lead it further astray than what it writes itself.
func TestRowsTakenForPermits(t *testing.T) { //nolint:paralleltest // one JVM at a time
	const rate = 10
	minute := rratelimiter.PerMinute
	eachRelease(t, func(t *testing.T, peer javaPeer) {
		r := peer.release
		if !r.KeepsSet {
			t.Logf("Redisson %s has no rows", r.Version)
			return
		}
		rdb, url := redistest.Redis(t), redistest.Shared(t).URL()
		java := peer.service(t, url)
		takers := map[string]service{"Java": peer.service(t, url), "Go": newGo(t, rdb, sharing(r.Version)...)}
		// Both ways a permit comes back, while nine are in use, to a value that has
		// no room for it.
		for _, way := range []struct {
			name  string
			first int64 // rate
		}{{"the value gets lost", rate}, {"the rate is set again and lower", 2 * rate}} {
			for _, requests := range []int{1, rate - 1} {
				// What is right is 1: nine of ten are in use.
				want := 1
				switch {
				case !r.Clamps:
					want = rate + 1
				case !r.SumsUp:
					want = rate - requests
				}
				for side, taker := range takers {
					t.Run(fmt.Sprintf("%s, %d requests of %s", way.name, requests, side), func(t *testing.T) {
						java, name := java.in(t), redistest.Name(t)
						require.True(t, java.TrySetRate(name, minute(way.first)))
						require.True(t, java.Try(name, 1))
						passTime(t, rdb, name, time.Minute/2)
						require.Equal(t, requests, together(requests, func() bool {
							ok, err := taker.take(t.Context(), name, int64((rate-1)/requests))
							return assert.NoError(t, err) && ok
						}))
						if way.first == rate {
							require.NoError(t, rdb.Del(t.Context(), layout.KeysOf(name, "").Value).Err())
						} else {
							require.True(t, java.unlink(name))
							require.True(t, java.TrySetRate(name, minute(rate)))
						}
						require.EqualValues(t, rate, java.Available(name))
						passTime(t, rdb, name, time.Minute/2)
						granted := 0
						for java.Try(name, 1) {
							granted++
						}
						record(t, r.Version, way.name, requests, side, granted, want)
						require.Equal(t, want, granted)
					})
				}
			}
		}
	})
}

// together has f run by so many goroutines at once and returns how often it
// answered true.
func together(n int, f func() bool) int {
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if f() {
				granted.Add(1)
			}
		})
	}
	wg.Wait()
	return int(granted.Load())
}
