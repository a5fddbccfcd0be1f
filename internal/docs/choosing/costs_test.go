package choosing_test

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// costs is what a limiter costs the server.
type costs struct {
	candidate
	bytes            []int64 // of a key, by inUse
	granting, asking call
}

// call is a script call: the commands that it makes, and the microseconds that
// the server is busy with it.
type call struct {
	commands []string
	micros   float64
}

// inUse are the permits in use of which the memory is told.
var inUse = []int{1, 60, 1000}

// The page's memory and commands are what the limiters cost. Times are only
// written, not compared: they are the machine's, and of several rounds the least.
func TestCosts(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartRedis(t).Client(t, nil)
	rounds := 1
	if *update {
		rounds = 20
	}
	all := make([]costs, len(candidates))
	for i, c := range candidates {
		all[i] = measure(t, rdb, c, rounds)
	}
	section(t, "costs", costTable(t, rdb, all), func(want, got string) {
		wanted, there := figures.FindAllStringSubmatch(want, -1), figures.FindAllStringSubmatch(got, -1)
		require.Len(t, there, len(candidates))
		for i, row := range wanted {
			for j, cell := range row[1:] {
				n, err := strconv.ParseFloat(cell, 64)
				if err != nil {
					assert.Equal(t, cell, there[i][j+1], "of %s: go test ./internal/docs/choosing -update", row[1])
					continue
				}
				old, _ := strconv.ParseFloat(there[i][j+1], 64)
				assert.InEpsilon(t, n, old, 0.5, "bytes of %s: go test ./internal/docs/choosing -update", row[1])
			}
		}
	})
}

// measure has a limiter of 1000 permits grant them all, one by one, and then
// refuse.
func measure(t *testing.T, rdb *redis.Client, c candidate, rounds int) costs {
	t.Helper()
	const most = 1000
	result := costs{candidate: c}
	var granting, asking []float64
	for round := range rounds {
		limiter, key := c.make(rdb, most, most), fmt.Sprintf("key:%04d", round)
		granted := 0
		take := func() {
			d, err := limiter.Take(t.Context(), key, 1)
			require.NoError(t, err)
			if d.Granted {
				granted++
			}
		}
		take() // sets up what is not there
		for _, n := range inUse {
			before := stats(t, rdb)
			first := granted
			for granted < n {
				take()
			}
			if granted == inUse[1] {
				result.granting = before.until(stats(t, rdb), granted-first)
				granting = append(granting, result.granting.micros)
			}
			if round == 0 {
				result.bytes = append(result.bytes, memory(t, rdb, c.keys(key)))
			}
		}
		// A bucket is refilled every second: a series with a grant in it is not
		// one of refusals, and is tried again.
		for first := -1; first < granted; {
			first = granted
			before := stats(t, rdb)
			const refusals = 20
			for range refusals {
				take()
			}
			result.asking = before.until(stats(t, rdb), refusals)
		}
		asking = append(asking, result.asking.micros)
		require.NoError(t, rdb.Unlink(t.Context(), c.keys(key)...).Err())
	}
	result.granting.micros, result.asking.micros = slices.Min(granting), slices.Min(asking)
	return result
}

// memory returns the bytes of keys, the server's own for them included.
func memory(t *testing.T, rdb *redis.Client, keys []string) (bytes int64) {
	t.Helper()
	for _, key := range keys {
		n, err := rdb.MemoryUsage(t.Context(), key, 0).Result()
		require.NoError(t, err, key)
		bytes += n
	}
	return bytes
}

// counts are the calls of each command and the time spent in scripts.
type counts struct {
	calls  map[string]int
	micros int
}

var statLine = regexp.MustCompile(`cmdstat_([^:]+):calls=(\d+),usec=(\d+)`)

func stats(t *testing.T, rdb *redis.Client) counts {
	t.Helper()
	text, err := rdb.Info(context.WithoutCancel(t.Context()), "commandstats").Result()
	require.NoError(t, err)
	c := counts{calls: map[string]int{}}
	for _, m := range statLine.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[2])
		switch name := strings.ToUpper(m[1]); name {
		case "INFO", "EVAL":
		case "EVALSHA":
			c.micros, _ = strconv.Atoi(m[3])
		default:
			c.calls[name] = n
		}
	}
	return c
}

// until returns what each of so many calls came to.
func (c counts) until(later counts, calls int) call {
	one := call{micros: float64(later.micros-c.micros) / float64(calls)}
	for _, name := range slices.Sorted(maps.Keys(later.calls)) {
		// What a few calls make is upkeep.
		if later.calls[name]-c.calls[name] >= calls {
			one.commands = append(one.commands, name)
		}
	}
	return one
}

func costTable(t *testing.T, rdb *redis.Client, all []costs) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| limiter | bytes a key, 1 permit in use | 60 | 1000 |" +
		" commands of a grant | of a refusal | us of a grant | of a refusal |\n|---|---:|---:|---:|---|---|---:|---:|\n")
	for _, c := range all {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %s | %s | %.1f | %.1f |\n", c.name, c.bytes[0], c.bytes[1], c.bytes[2],
			strings.Join(c.granting.commands, " "), strings.Join(c.asking.commands, " "), c.granting.micros, c.asking.micros)
	}
	info, err := rdb.InfoMap(t.Context(), "server").Result()
	require.NoError(t, err)
	fmt.Fprintf(&b, "\nMeasured on Redis %s.\n", info["Server"]["redis_version"])
	return b.String()
}

// figures are the name of a limiter, its bytes and its commands in a row of the table.
var figures = regexp.MustCompile(`(?m)^\| ([^|]+) \| (\d+) \| (\d+) \| (\d+) \| ([A-Z ]+) \| ([A-Z ]+) \|`)
