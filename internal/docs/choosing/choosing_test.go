package choosing_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/docs/page"
)

var update = flag.Bool("update", false, "write docs/choosing.md's figures and its picture anew")

const (
	pageFile    = "../../../docs/choosing.md"
	pictureFile = "../../../docs/choosing/trace.svg"
)

// The page's picture and table are what the limiters answer.
func TestTheTrace(t *testing.T) {
	t.Parallel()
	all := run(t)
	const old = "%s is of another time: go test ./internal/docs/choosing -update"
	drawn := picture(all)
	if *update {
		require.NoError(t, os.WriteFile(pictureFile, []byte(drawn), 0o644))
	}
	there, err := os.ReadFile(pictureFile)
	require.NoError(t, err)
	assert.True(t, drawn == string(there), old, pictureFile) //nolint:testifylint // not to be printed
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

func TestFullestSpan(t *testing.T) {
	t.Parallel()
	second := time.Second
	assert.Equal(t, span{}, fullest(nil, second))
	assert.Equal(t, span{0, second - 1, 2}, fullest([]time.Duration{0, second - 1, second}, second))
	assert.Equal(t, span{5 * second, 5 * second, 2}, fullest([]time.Duration{0, second, 5 * second, 5 * second}, second))
}

func traceTable(all []answers) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| limiter | setting | granted of %d | most in any minute | when | most in any 10 s | longest wait named |\n"+
		"|---|---|---:|---:|---|---:|---:|\n", len(trace()))
	for _, a := range all {
		minute := fullest(a.granted, window)
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %s to %s | %d | %.0f s |\n", a.name, a.setting, len(a.granted),
			minute.granted, clock(minute.from), clock(minute.to), fullest(a.granted, 10*time.Second).granted, a.longest.Seconds())
	}
	return b.String()
}

// writing keeps tests from writing the page at the same time.
var writing sync.Mutex

// section compares a part of the page, between its markers, with what it should
// be; with -update it is written first.
func section(t *testing.T, name, text string, compare func(want, got string)) {
	t.Helper()
	writing.Lock()
	defer writing.Unlock()
	file, err := os.ReadFile(pageFile)
	require.NoError(t, err)
	there := "nothing"
	filled, err := page.Fill(string(file), func(marker, old string) (string, error) {
		switch {
		case marker != name:
			return old, nil
		case *update:
			old = text
		}
		there = old
		return old, nil
	})
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(pageFile, []byte(filled), 0o644))
	}
	compare(text, there)
}
