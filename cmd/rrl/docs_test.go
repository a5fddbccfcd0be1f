package main

import (
	"flag"
	"fmt"
	"html"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
)

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/rrl.md")
	require.NoError(t, err)
	return string(text)
}

// What docs/rrl.md shows is what the commands print, run one after the other on one server.
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

const pictureFile = "../../docs/demo.svg"

var update = flag.Bool("update", false, "record the demo in docs/demo.svg anew")

// TestThePictureOfTheDemo holds README's picture against what the demo prints.
// "go test ./cmd/rrl -run TestThePictureOfTheDemo -update" records it anew.
func TestThePictureOfTheDemo(t *testing.T) {
	t.Parallel()
	args := []string{"demo", "--tries", "15"}
	line := "rrl " + strings.Join(args, " ")
	out := &drawing{}
	synctest.Test(t, func(t *testing.T) {
		out.start = time.Now()
		fmt.Fprintln(out, "$ "+line)
		a := &app{out: output.Printer{Writer: out, Color: true, Width: 80}, stderr: out}
		root := newRoot(a)
		root.SetArgs(args)
		require.NoError(t, root.ExecuteContext(t.Context()))
	})
	got := fmt.Sprintf(pictureHead, out.lines*lineHeight+margin, html.EscapeString("A terminal: "+line)) + out.svg.String() + "</svg>\n"
	if *update {
		require.NoError(t, os.WriteFile(pictureFile, []byte(got), 0o644))
	}
	want, err := os.ReadFile(pictureFile)
	require.NoError(t, err)
	assert.Equal(t, string(want), got, "%s: run this test with -update", pictureFile)
}

// pictureHead shows each line from its moment on, and all of them where no
// movement is wanted.
const pictureHead = `<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 672 %d" role="img" aria-labelledby="title">
  <title id="title">%s</title>
  <style>
    text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #e6edf3; white-space: pre; }
    .bold { font-weight: 700; }
    .granted { fill: #56d364; }
    .denied { fill: #ff7b72; }
    .faint { fill: #8c959f; }
    @media (prefers-reduced-motion: no-preference) {
      text { animation: appear 1ms both; }
      @keyframes appear { from { opacity: 0; } to { opacity: 1; } }
    }
  </style>
  <rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
`

// spans are what colours of a terminal are in the picture.
var spans = strings.NewReplacer("\x1b[1m", `<tspan class="bold">`, "\x1b[31m", `<tspan class="denied">`,
	"\x1b[32m", `<tspan class="granted">`, "\x1b[2m", `<tspan class="faint">`, "\x1b[0m", "</tspan>")

const lineHeight, margin = 18, 24

// drawing is a terminal that is written to by whole lines, and draws them.
type drawing struct {
	start time.Time
	lines int
	svg   strings.Builder
}

func (d *drawing) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		d.lines++
		if text := spans.Replace(html.EscapeString(strings.TrimSuffix(line, "\n"))); text != "" {
			fmt.Fprintf(&d.svg, `  <text x="16" y="%d" style="animation-delay: %dms">%s</text>`+"\n",
				d.lines*lineHeight+margin/4, time.Since(d.start).Milliseconds(), text)
		}
	}
	return len(p), nil
}
