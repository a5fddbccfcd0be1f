package compat_test

import (
	"fmt"
	"testing"

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
		java := javaService{t, peer.driver.open(t, url)}
		other := peer.driver.open(t, url)
		goes := newGo(t, rdb, sharing(r.Version)...)
		sides := map[string]func(name string, permits int64) (bool, error){
			"Java": func(name string, permits int64) (bool, error) { return other.TryAcquireNow(t.Context(), name, permits) },
			"Go": func(name string, permits int64) (bool, error) {
				return goes.RateLimiter(name).TryAcquire(t.Context(), permits, 0)
			},
		}

		// Both ways a permit comes back, while nine are in use, to a value that has
		// no room for it.
		ways := []struct {
			name string
			do   func(t *testing.T, take func(name string), name string)
		}{
			{"the value gets lost", func(t *testing.T, take func(string), name string) {
				require.True(t, java.TrySetRate(name, minute(rate)))
				require.True(t, java.Try(name, 1))
				passTime(t, rdb, name, minute(1).Interval/2)
				take(name)
				require.NoError(t, rdb.Del(t.Context(), layout.KeysOf(name, "").Value).Err())
				require.EqualValues(t, rate, java.Available(name))
			}},
			{"the rate is set again and lower", func(t *testing.T, take func(string), name string) {
				require.True(t, java.TrySetRate(name, minute(2*rate)))
				require.True(t, java.Try(name, 1))
				passTime(t, rdb, name, minute(1).Interval/2)
				take(name)
				_, err := java.Unlink(t.Context(), name)
				require.NoError(t, err)
				require.True(t, java.TrySetRate(name, minute(rate)))
				require.EqualValues(t, rate, java.Available(name))
			}},
		}
		for _, way := range ways {
			for _, requests := range []int{1, rate - 1} {
				// What is right is 1: nine of ten are in use.
				want := 1
				switch {
				case !r.Clamps:
					want = rate + 1
				case !r.SumsUp:
					want = rate - requests
				}
				for side, try := range sides {
					t.Run(fmt.Sprintf("%s, %d requests of %s", way.name, requests, side), func(t *testing.T) {
						name := redistest.Name(t)
						way.do(t, func(name string) {
							require.Equal(t, requests, together(requests, func() bool {
								ok, err := try(name, int64((rate-1)/requests))
								return assert.NoError(t, err) && ok
							}))
						}, name)
						passTime(t, rdb, name, minute(1).Interval/2)
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
