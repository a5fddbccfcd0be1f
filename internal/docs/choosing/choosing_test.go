package choosing_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/choosing.md's figures and its picture anew")

const (
	page        = "../../../docs/choosing.md"
	pictureFile = "../../../docs/choosing/trace.svg"
)

// The page's picture and table are what the limiters answer.
func TestTheTrace(t *testing.T) {
	t.Parallel()
	all := run(t)
	compareWithPage(t, all)

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

func compareWithPage(t *testing.T, all []answers) {
	t.Helper()
	drawn := []byte(picture(all))
	if *update {
		require.NoError(t, os.WriteFile(pictureFile, drawn, 0o644))
	}
	there, err := os.ReadFile(pictureFile)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(drawn, there), "%s is of another time: go test ./internal/docs/choosing -update", pictureFile)
	section(t, "trace", traceTable(all), func(want, got string) {
		assert.Equal(t, want, got, "%s is of another time: go test ./internal/docs/choosing -update", page)
	})
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
	fmt.Fprintf(&b, "| limiter | setting | granted of %d | most in any minute | when | most in any 10 s | longest wait named |\n", len(trace()))
	b.WriteString("|---|---|---:|---:|---|---:|---:|\n")
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
	file, err := os.ReadFile(page)
	require.NoError(t, err)
	begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
	before, rest, found := strings.Cut(string(file), begin)
	require.True(t, found, "%s has no %q", page, begin)
	there, after, found := strings.Cut(rest, end)
	require.True(t, found, "%s has no %q", page, end)
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(before+begin+text+end+after), 0o644))
		there = text
	}
	compare(text, there)
}
