package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// page returns docs/rrl.md.
func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/rrl.md")
	require.NoError(t, err)
	return string(text)
}

// What docs/rrl.md shows is what the commands print, run one after the other on
// one server.
func TestDocsShowWhatCommandsPrint(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	m.SetTime(time.Unix(1_800_000_000, 0))
	env := map[string]string{"REDIS_URL": m.Addr()}
	commands := 0
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(page(t), -1) {
		for _, shown := range strings.Split("\n"+block[1], "\n$ rrl ")[1:] {
			line, want, _ := strings.Cut(shown, "\n")
			got := rrlWith(t.Context(), env, strings.Fields(line)...)
			assert.Equal(t, strings.TrimSuffix(want, "\n"), strings.TrimSuffix(got.stdout+got.stderr, "\n"), "rrl %s", line)
			commands++
		}
	}
	assert.Equal(t, 8, commands)
}

func TestDocsNameEachCommandAndFlag(t *testing.T) {
	t.Parallel()
	text := page(t)
	root := newRoot(&app{})
	root.InitDefaultCompletionCmd()
	var commands []string
	for _, c := range root.Commands() {
		commands = append(commands, c.Name())
		assert.Contains(t, text, "| `rrl "+c.Name(), "docs/rrl.md says nothing of this command")
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `rrl ([a-z-]+)").FindAllStringSubmatch(text, -1) {
		assert.True(t, slices.Contains(commands, row[1]), "docs/rrl.md has a command %q", row[1])
	}
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		assert.Contains(t, text, "`--"+f.Name, "docs/rrl.md says nothing of this flag")
	})
}
