// Package compat_test works limiters together with real Redisson, on real servers.
package compat_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	layout "github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// newestRedisson has every operation that the driver knows.
const newestRedisson = "4.7.0"

var (
	seed            = flag.Uint64("seed", 0, "seed of the random history; 0 draws one")
	operations      = flag.Int("ops", 1000, "operations in the random history")
	redissonVersion = flag.String("redisson", newestRedisson, "release of Redisson to test against")
)

// The matrix: what is tested beside every release. Each release has a JVM for itself, some one after the other.

// eachRelease runs test beside each release of Redisson that is asked for.
func eachRelease(t *testing.T, test func(*testing.T, *javaDriver)) {
	t.Helper()
	for _, version := range releases(t) {
		t.Run(version, func(t *testing.T) { test(t, startDriver(t, version)) })
	}
}

// record adds a line to the table of results that has the test's name.
func record(t *testing.T, columns ...any) {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	redistest.Record(t, test, columns...)
}

// sharing returns the options of a Client that shares limiters with a release: none from 3.35 on.
func sharing(version string) []rratelimiter.Option {
	if !model.Older(version, "3.35.0") {
		return nil
	}
	return []rratelimiter.Option{rratelimiter.WithRedissonVersion(version)}
}

func TestTurns(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, limitertest.Rows(releases(t)...), func(t *testing.T, version string) {
		peer := startDriver(t, version)
		playTurns(t, fleet{javas: []*javaDriver{peer, peer}, oldest: version})
	})
}

// TestRowsTakenForPermits: Redisson 3.16.2 to 3.34 counts rows instead of permits, when it corrects a value above the rate.
// What Go writes for such a release must not lead it further astray than what it writes itself.
func TestRowsTakenForPermits(t *testing.T) { //nolint:paralleltest // one JVM at a time
	const rate = 10
	hour := rratelimiter.PerHour
	eachRelease(t, func(t *testing.T, peer *javaDriver) {
		r := peer.release
		if !r.KeepsSet {
			t.Logf("Redisson %s has no rows", r.Version)
			return
		}
		rdb, url := redistest.Redis(t), redistest.Shared(t).URL()
		java := peer.service(t, url)
		takers := map[string]service{"Java": peer.service(t, url), "Go": newGo(t, rdb, sharing(r.Version)...)}
		// Both ways a permit comes back, while nine are in use, to a value that has no room for it.
		for way, first := range map[string]int64{"the value gets lost": rate, "the rate is set again and lower": 2 * rate} { // by the first rate
			for _, requests := range []int{1, rate - 1} {
				// What is right is 1: nine of ten are in use.
				want := 1
				switch {
				case r.Trusts:
					want = rate
				case !r.Clamps:
					want = rate + 1
				case !r.SumsUp:
					want = rate - requests
				}
				for side, taker := range takers {
					t.Run(fmt.Sprintf("%s, %d requests of %s", way, requests, side), func(t *testing.T) {
						java, name := java.in(t), redistest.Name(t)
						require.True(t, java.TrySetRate(name, hour(first)))
						require.True(t, java.Try(name, 1))
						passTime(t, rdb, name, time.Hour/2)
						require.Equal(t, requests, together(requests, func() bool {
							ok, err := taker.take(t.Context(), name, int64((rate-1)/requests), 0)
							return assert.NoError(t, err) && ok
						}))
						if first == rate {
							require.NoError(t, rdb.Del(t.Context(), layout.KeysOf(name, "").Value).Err())
						} else {
							require.True(t, java.unlink(name))
							require.True(t, java.TrySetRate(name, hour(rate)))
						}
						require.EqualValues(t, rate, java.Available(name))
						passTime(t, rdb, name, time.Hour/2)
						granted := 0
						for java.Try(name, 1) {
							granted++
						}
						record(t, r.Version, way, requests, side, granted, want)
						require.Equal(t, want, granted)
					})
				}
			}
		}
	})
}

// together runs f in that many goroutines at once and returns how often it returned true.
func together(n int, f func() bool) int {
	var granted atomic.Int64
	limitertest.Together(n, func(int) {
		if f() {
			granted.Add(1)
		}
	})
	return int(granted.Load())
}

// Two releases of Redisson, older first, and Go on the same limiters.
var (
	// mixable are releases that share limiters with each other.
	mixable = [][2]string{
		{"3.12.3", "3.13.2"}, {"3.20.1", "4.7.0"}, {"3.13.6", "3.15.5"}, {"3.15.5", "3.16.0"},
		{"3.17.7", "3.27.2"}, {"3.27.2", "4.7.0"}, {"3.35.0", "4.7.0"}, {"3.45.1", "4.3.1"},
		{"4.7.0", "next"}, {"3.20.1", "next"}, {"4.7.0", "after-next"}, {"3.20.1", "after-next"},
	}

	// immiscible are releases that do not read, or not count, each other's rows.
	immiscible = [][2]string{
		{"3.15.5", "3.16.8"}, {"3.16.8", "4.7.0"}, {"3.12.3", "3.15.5"}, {"3.12.3", "4.7.0"},
		{"3.15.5", "3.17.7"}, {"3.15.5", "4.7.0"}, {"3.16.8", "3.20.1"},
	}
)

// eachFleet runs test beside two pairs, or with -releases beside those of which it names both, or all.
func eachFleet(t *testing.T, pairs [][2]string, test func(t *testing.T, older, newer *javaDriver)) {
	t.Helper()
	for i, pair := range pairs {
		missing := func(version string) bool { return *releasesFlag != "all" && !slices.Contains(releases(t), version) }
		if *releasesFlag == "" && i > 1 || *releasesFlag != "" && slices.ContainsFunc(pair[:], missing) {
			continue
		}
		t.Run(pair[0]+"+"+pair[1], func(t *testing.T) { test(t, startDriver(t, pair[0]), startDriver(t, pair[1])) })
	}
}

func TestFleetTurns(t *testing.T) {
	t.Parallel()
	eachFleet(t, mixable, func(t *testing.T, older, newer *javaDriver) {
		playTurns(t, fleet{javas: []*javaDriver{older, newer}, oldest: older.release.Version})
	})
}

// TestFleetsThatBreak shows what the two Redissons do to each other, and that Go beside them breaks neither of them that would
// not break without it. If Go is the first to ask when rows have run out, none breaks at all.
func TestFleetsThatBreak(t *testing.T) { //nolint:paralleltest // few JVMs at a time
	eachFleet(t, immiscible, func(t *testing.T, older, newer *javaDriver) {
		pair := older.release.Version + "+" + newer.release.Version
		rdb, url := redistest.Redis(t), redistest.Shared(t).URL()
		javas := []service{older.service(t, url), newer.service(t, url)}
		goes := newGo(t, rdb, sharing(older.release.Version)...)
		for first, second := range []int{1, 0} {
			asks := fmt.Sprintf("%s asks first", []*javaDriver{older, newer}[first].release.Version)
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

// afterAnInterval lets two Javas take permits, and Go too if takes is set. An interval
// later both Javas ask again, after Go if sweeps is set. It returns their answers.
func afterAnInterval(t *testing.T, javas []service, first, second int, goes service, takes, sweeps bool) string {
	t.Helper()
	cfg := rratelimiter.PerHour(10)
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
		granted, err := javas[i].take(t.Context(), name, 1, 0)
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

// matrix holds the releases that the tests run beside, oldest first.
var matrix = []string{
	"3.12.3", "3.13.6", "3.15.5", "3.16.0", "3.16.8", "3.17.7", "3.20.1", "3.23.5", "3.27.2",
	"3.35.0", "3.37.0", "3.38.1", "3.45.1", "3.52.0", "4.0.0", "4.3.1", "4.7.0", "next", "after-next",
}

// part holds a release of each layout, those before and after the last change of how permits in use are counted, and what is not released.
var part = []string{"3.12.3", "3.15.5", "3.16.8", "3.20.1", "3.27.2", "4.7.0", "next", "after-next"}

var releasesFlag = flag.String("releases", os.Getenv("RRL_RELEASES"),
	"releases of Redisson to run the matrix on: all, or some with commas between; "+
		"without it RRL_RELEASES, else the one of -redisson or, without that, one of each layout")

func releases(t testing.TB) []string {
	t.Helper()
	switch *releasesFlag {
	case "all":
		return matrix
	case "":
		if *redissonVersion != newestRedisson {
			return []string{*redissonVersion}
		}
		return part
	}
	return strings.Split(*releasesFlag, ",")
}

// fleet is the services that share limiters in the random turns: these in Java and some in Go.
type fleet struct {
	javas  []*javaDriver
	oldest string // the release in Go's WithRedissonVersion; "" for none
	codec  []any  // that the Redissons get, and whether they cache scripts; nil: the usual
}

func (f fleet) String() string {
	var versions []string
	for _, peer := range f.javas {
		versions = append(versions, peer.release.Version)
	}
	return strings.Join(slices.Compact(versions), "+")
}

// playTurns has Go and Java services work the same limiters by turns, at random. After every operation its answer and all that
// Redis holds must be what the model says.
//
// No result depends on how fast the machine is: time passes by moving the state back, nothing ends at the moment of an
// operation, and one that took so long that something may have ended meanwhile is done again, from the same state.
func playTurns(t *testing.T, f fleet) {
	t.Helper()
	seed, begin := *seed, time.Now()
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	var javas []*javaClient
	var released []*model.Release
	rdb, ops := redistest.CurrentClient(t), *operations
	for _, peer := range f.javas {
		if f.codec == nil {
			javas = append(javas, peer.openThere(t))
		} else {
			rdb, ops = redistest.Redis(t), min(ops, 1000)
			javas = append(javas, peer.openBy(t, "open", append([]any{redistest.Shared(t).URL(), ""}, f.codec...)...))
		}
		released = append(released, peer.release)
	}
	st := newStage(t, newCast(f.oldest, released...).withMore(), f.oldest, rdb, javas...)
	r := newRecorder(t, st, drawer{Rand: rand.New(rand.NewPCG(seed, 0)), tick: goldenTick, more: true})
	defer func() {
		for key, n := range r.counts {
			record(t, f, key, n.compared, n.mismatches, redistest.CurrentTopology(t))
		}
	}()
	r.takeTurns(ops)
	miscounted := r.miscounted
	miscounting := slices.ContainsFunc(f.javas, func(peer *javaDriver) bool { return peer.release.CountsRows() })
	require.Equal(t, miscounting, miscounted > 0, "rows taken for permits, %d times", miscounted)
	t.Logf("-seed %d -ops %d: %d operations in %v, %d mismatches, rows taken for permits %d times",
		seed, ops, r.compared, time.Since(begin).Round(time.Millisecond), r.mismatches, miscounted)
}

// takeTurns takes that many turns, the second half of them with many releases.
func (r *recorder) takeTurns(operations int) {
	r.begin()
	for r.compared < operations {
		r.heavy = r.compared > operations/2
		if r.IntN(200) == 0 {
			r.miscount(pick(r.drawer, []string{"0", "1"}), r.IntN(2) == 0)
		}
		r.turn(r.IntN(100))
	}
	r.requireNoOtherKeys(r.t)
}

var histories = flag.Int("histories", 25, "histories of TestHistories")

// TestHistories lets Go services take turns, and Redissons of any release that do what the
// model says of them, on a clock that stands: to the millisecond.
func TestHistories(t *testing.T) {
	t.Parallel()
	for n := range *histories {
		first := *seed
		if first == 0 {
			first = rand.Uint64()
		}
		t.Run(fmt.Sprintf("seed %d", first+uint64(n)), func(t *testing.T) {
			t.Parallel()
			draw := drawer{Rand: rand.New(rand.NewPCG(first+uint64(n), 0)), still: true, more: true}
			draw.tick = pick(draw, []int64{1, 50, 1000, goldenTick})
			version := pick(draw, append(slices.Repeat([]string{newestRedisson}, len(matrix)), matrix...))
			redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
				st := newStage(t, traceCast(version).withMore(), version, rdb)
				st.still = true
				newRecorder(t, st, draw).takeTurns(min(*operations, 200))
			})
		})
	}
}

// moveBack moves all that Redis holds under KEYS back in time.
var moveBack = redis.NewScript(`
for _, key in ipairs(KEYS) do
  if redis.call('TYPE', key).ok == 'zset' then
    local rows = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #rows, 2 do
      redis.call('ZADD', key, 'XX', string.format('%.0f', rows[i + 1] - ARGV[1]), rows[i])
    end
  end
  local ttl = redis.call('PTTL', key)
  if ttl >= 0 and ttl - ARGV[1] <= 0 then
    redis.call('DEL', key)
  elseif ttl >= 0 then
    redis.call('PEXPIRE', key, string.format('%.0f', ttl - ARGV[1]))
  end
end
return 0`)
