package choosing

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/docs/page"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/story"
	"github.com/rratelimiter/rratelimiter/limit"
)

// run lets each limiter answer the trace, in virtual time.
func run(t *testing.T) []answers {
	t.Helper()
	all := make([]answers, len(candidates))
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		limiters := make([]limit.Limiter, len(candidates))
		for i, c := range candidates {
			all[i].candidate = c
			limiters[i] = c.make(rdb, perWindow, capacity)
		}
		key, start := redistest.Name(t), time.Now()
		for _, at := range trace() {
			time.Sleep(at - time.Since(start))
			for i, l := range limiters {
				d := limitertest.Must(l.Take(t.Context(), key+candidates[i].name, 1))(t)
				if d.Granted {
					all[i].granted = append(all[i].granted, at)
				}
				all[i].longest = max(all[i].longest, d.RetryAfter)
			}
		}
	})
	return all
}

const (
	pageFile    = "../../../docs/choosing.md"
	pictureFile = "../../../docs/choosing/trace.svg"
)

func TestTrace_MatchesPage(t *testing.T) {
	t.Parallel()
	all := run(t)
	const old = "%s is of another time: go test ./internal/docs/choosing -update"
	drawn := picture(all)
	if story.Updates() {
		require.NoError(t, os.WriteFile(pictureFile, []byte(drawn), 0o644))
	}
	assert.True(t, drawn == string(limitertest.Must(os.ReadFile(pictureFile))(t)), old, pictureFile) //nolint:testifylint // not to be printed
	section(t, "trace", traceTable(all), func(want, got string) { assert.Equal(t, want, got, old, pageFile) })
	most := map[string]int{}
	granted := map[string][]time.Duration{}
	for _, a := range all {
		most[a.name], granted[a.name] = fullest(a.granted, window).granted, a.granted
	}
	assert.Equal(t, granted["RateLimiter"], granted["sliding log"], "both keep the same rule")
	assert.Equal(t, perWindow, most["sliding log"])
	assert.Greater(t, most["fixed window, counter"], perWindow*3/2)
	assert.LessOrEqual(t, most["fixed window, counter"], 2*perWindow)
	assert.LessOrEqual(t, most["token bucket"], capacity+perWindow)
	assert.LessOrEqual(t, most["token bucket that lends"], capacity+borrow+perWindow)
}

// writing keeps tests from writing the page at the same time.
var writing sync.Mutex

// section compares a part of the page, between its markers, with what it should be; with -update it is written first.
func section(t *testing.T, name, text string, compare func(want, got string)) {
	t.Helper()
	writing.Lock()
	defer writing.Unlock()
	file := limitertest.Must(os.ReadFile(pageFile))(t)
	there := "nothing"
	filled, err := page.Fill(string(file), func(marker, old string) (string, error) {
		switch {
		case marker != name:
			return old, nil
		case story.Updates():
			old = text
		}
		there = old
		return old, nil
	})
	require.NoError(t, err)
	if story.Updates() {
		require.NoError(t, os.WriteFile(pageFile, []byte(filled), 0o644))
	}
	compare(text, there)
}

// costs is what a limiter costs the server.
type costs struct {
	candidate
	bytes            []int64 // of a key, by inUse
	granting, asking call
}

// call is a script call: the commands that it makes, and the microseconds that the server is busy with it.
type call struct {
	commands []string
	micros   float64
}

// inUse are the permits in use of which the memory is measured.
var inUse = []int{1, 60, 1000}

// The page's memory and commands are what the limiters cost. Times are only
// written, not compared: they are the machine's, and of several rounds the least.
func TestCosts(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartRedis(t).Client(t, nil)
	rounds := 1
	if story.Updates() {
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

// measure takes all of a limiter's 1000 permits, one by one, and is then refused.
func measure(t *testing.T, rdb redistest.Client, c candidate, rounds int) costs {
	t.Helper()
	const most = 1000
	result := costs{candidate: c}
	var granting, asking []float64
	for round := range rounds {
		limiter, key := c.make(rdb, most, most), fmt.Sprintf("key:%04d", round)
		granted := 0
		take := func() {
			if limitertest.Must(limiter.Take(t.Context(), key, 1))(t).Granted {
				granted++
			}
		}
		take() // sets up missing limiters
		for _, n := range inUse {
			one := ran(t, rdb, n-granted, take)
			require.Equal(t, n, granted)
			if n == inUse[1] {
				result.granting, granting = one, append(granting, one.micros)
			}
			if round == 0 {
				result.bytes = append(result.bytes, memory(t, rdb))
			}
		}
		// A bucket is refilled every second: a series with a grant in it is not one of refusals, and is tried again.
		for first := -1; first < granted; {
			first = granted
			result.asking = ran(t, rdb, 20, take)
		}
		asking = append(asking, result.asking.micros)
		require.NoError(t, rdb.FlushAll(t.Context()).Err())
	}
	result.granting.micros, result.asking.micros = slices.Min(granting), slices.Min(asking)
	return result
}

// memory returns the bytes of all keys, the server's own for them included.
func memory(t *testing.T, rdb redistest.Client) (bytes int64) {
	t.Helper()
	for _, key := range redistest.Keys(t, rdb, "*") {
		n, err := rdb.MemoryUsage(t.Context(), key, 0).Result()
		require.NoError(t, err, key)
		bytes += n
	}
	return bytes
}

// ran makes that many calls of a limiter and returns the result of each.
func ran(t *testing.T, rdb redistest.Client, calls int, take func()) (one call) {
	t.Helper()
	require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
	for range calls {
		take()
	}
	for name, figures := range limitertest.Must(rdb.InfoMap(t.Context(), "commandstats").Result())(t)["Commandstats"] {
		var n, micros int
		_, err := fmt.Sscanf(figures, "calls=%d,usec=%d", &n, &micros)
		require.NoError(t, err, figures)
		switch name := strings.ToUpper(strings.TrimPrefix(name, "cmdstat_")); {
		case name == "EVALSHA":
			one.micros = float64(micros) / float64(calls)
		case name != "EVAL" && n >= calls: // what a few calls make is upkeep
			one.commands = append(one.commands, name)
		}
	}
	slices.Sort(one.commands)
	return one
}

func costTable(t *testing.T, rdb redistest.Client, all []costs) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| limiter | bytes a key, 1 permit in use | 60 | 1000 |" +
		" commands of a grant | of a refusal | us of a grant | of a refusal |\n|---|---:|---:|---:|---|---|---:|---:|\n")
	for _, c := range all {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %s | %s | %.1f | %.1f |\n", c.name, c.bytes[0], c.bytes[1], c.bytes[2],
			strings.Join(c.granting.commands, " "), strings.Join(c.asking.commands, " "), c.granting.micros, c.asking.micros)
	}
	fmt.Fprintf(&b, "\nMeasured on Redis %s.\n", limitertest.Must(rdb.InfoMap(t.Context(), "server").Result())(t)["Server"]["redis_version"])
	return b.String()
}

// figures are the name of a limiter, its bytes and its commands in a row of the table.
var figures = regexp.MustCompile(`(?m)^\| ([^|]+) \| (\d+) \| (\d+) \| (\d+) \| ([A-Z ]+) \| ([A-Z ]+) \|`)
