package compat_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// fleet is the services that share limiters in the random turns: these in Java
// and some in Go.
type fleet struct {
	javas  []javaPeer
	oldest string // the release that Go is told to share limiters with; none without
}

// javaPeer is a service in Java.
type javaPeer struct {
	driver  *javaDriver
	release *model.Release
}

// String returns the fleet's releases of Redisson.
func (f fleet) String() string {
	var versions []string
	for _, peer := range f.javas {
		versions = append(versions, peer.release.Version)
	}
	return strings.Join(slices.Compact(versions), "+")
}

// playTurns has Go and Java services work the same limiters by turns, at
// random. After every operation its answer and all that Redis holds must be
// what the model says.
//
// No result depends on how fast the machine is: time passes by moving the state back,
// nothing ends at the moment of an operation, and one that took so long that something
// may have ended meanwhile is done again, from the same state.
func playTurns(t *testing.T, f fleet) {
	t.Helper()
	seed, begin := *seed, time.Now()
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	var javas []*javaClient
	var released []*model.Release
	for _, peer := range f.javas {
		javas = append(javas, peer.driver.open(t, redistest.Shared(t).URL()))
		released = append(released, peer.release)
	}
	st := newStage(t, newCast(f.oldest, released...).withMore(), f.oldest, redistest.Redis(t), javas...)
	r := newRecorder(t, st, drawer{Rand: rand.New(rand.NewPCG(seed, 0)), tick: goldenTick})
	compared := func() (all []string) {
		for _, key := range slices.Sorted(maps.Keys(r.counts)) {
			all = append(all, fmt.Sprintf("%s %d", key, r.counts[key].compared))
		}
		return all
	}
	defer func() {
		for key, n := range r.counts {
			record(t, f, key, n.compared, n.mismatches)
		}
	}()
	r.takeTurns(*operations)
	miscounted := r.cover.counts["rows taken for permits"]
	miscounting := slices.ContainsFunc(f.javas, func(peer javaPeer) bool { return peer.release.CountsRows() })
	require.Equal(t, miscounting, miscounted > 0, "rows taken for permits, %d times", miscounted)
	t.Logf("-seed %d -ops %d: %d operations in %v, %d mismatches, rows taken for permits %d times; %s",
		seed, *operations, r.compared, time.Since(begin).Round(time.Millisecond), r.mismatches, miscounted, strings.Join(compared(), ", "))
}

// takeTurns takes so many turns, the second half of them with many releases.
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

// TestHistories has Go services take turns, and Redissons of any release that do what the
// model says of them, on a clock that stands: to the millisecond, with calls that wait.
func TestHistories(t *testing.T) {
	t.Parallel()
	for n := range *histories {
		first := *seed
		if first == 0 {
			first = rand.Uint64()
		}
		t.Run(fmt.Sprintf("seed %d", first+uint64(n)), func(t *testing.T) {
			t.Parallel()
			draw := drawer{Rand: rand.New(rand.NewPCG(first+uint64(n), 0)), still: true}
			draw.tick = pick(draw, []int64{1, 50, 1000, goldenTick})
			version := pick(draw, append(slices.Repeat([]string{newestRedisson}, len(matrix)), matrix...))
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
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
