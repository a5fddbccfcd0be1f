// Package story reads tests written in text files: what a program is asked, and what comes of it. A file holds stories, each
// behind a line of "== " and a title. A line that begins with # is a comment, and one that ends in \ goes on in the next.
package story

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Step is a line of a story: words, a mark such as =>, and what is wanted. The last two may be missing.
type Step struct {
	Line       string
	Words      []string
	Mark, Want string
}

// Run plays the stories of all files in testdata/script, in parallel.
func Run(t *testing.T, play func(t *testing.T, title string, steps []Step)) {
	t.Helper()
	files, err := filepath.Glob("testdata/script/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, told := range strings.Split("\n"+string(text), "\n== ")[1:] {
			title, lines, _ := strings.Cut(told, "\n")
			t.Run(filepath.Base(file)+": "+title, func(t *testing.T) {
				t.Parallel()
				play(t, title, Steps(t, lines))
			})
		}
	}
}

var form = regexp.MustCompile(`^(.*?)(?: +([=!-][>~]) ?(.*))?\n$`)

// Steps returns those of a text, in which the pairs are replaced.
func Steps(t testing.TB, text string, pairs ...string) (all []Step) {
	t.Helper()
	for line := range strings.Lines(strings.NewReplacer(append(pairs, "\\\n", "")...).Replace(text) + "\n") {
		if line == "\n" || line[0] == '#' {
			continue
		}
		parts := form.FindStringSubmatch(line)
		require.NotNil(t, parts, "%q", line)
		all = append(all, Step{line, Words(parts[1]), parts[2], parts[3]})
	}
	return all
}

// Words returns those of a line, which may be quoted as in Go.
func Words(line string) []string {
	all := []string{} // without any, cobra takes the test's own
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		word, err := strconv.QuotedPrefix(line)
		if err != nil {
			word, _, _ = strings.Cut(line, " ")
		}
		line = line[len(word):]
		if text, err := strconv.Unquote(word); err == nil {
			word = text
		}
		all = append(all, word)
	}
	return all
}

// Int returns a word as a number, 0 if it is missing.
func (s Step) Int(t testing.TB, i int) (n int64) {
	t.Helper()
	if i < len(s.Words) {
		var err error
		n, err = strconv.ParseInt(s.Words[i], 10, 64)
		require.NoError(t, err, s.Line)
	}
	return n
}

// Span returns a word as a time, 0 if it is missing.
func (s Step) Span(t testing.TB, i int) (d time.Duration) {
	t.Helper()
	if i < len(s.Words) {
		var err error
		d, err = time.ParseDuration(s.Words[i])
		require.NoError(t, err, s.Line)
	}
	return d
}

// Redis runs the words behind the first as a command of a server, whose answer must be the one wanted, if any is.
func (s Step) Redis(t testing.TB, rdb redistest.Client) {
	t.Helper()
	var words []any
	for _, word := range s.Words[1:] {
		words = append(words, word)
	}
	got, err := rdb.Do(t.Context(), words...).Result()
	require.NoError(t, err, s.Line)
	if s.Mark != "" {
		require.Equal(t, s.Want, fmt.Sprint(got), s.Line)
	}
}

var update = flag.Bool("update", false, "write the files that tests compare with what they get")

// Updates reports whether -update is given.
func Updates() bool { return *update }

// Golden compares a text with a file, which -update writes.
func Golden(t testing.TB, path, text string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), text, "%s: run this test with -update", path)
}
