package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
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

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/story"
)

// outcome is what one command line came to.
type outcome struct {
	code           int
	stdout, stderr string
}

// rrlWith runs a command line as users do, with the times for which that waits.
func rrlWith(ctx context.Context, env map[string]string, args ...string) outcome {
	var stdout, stderr bytes.Buffer
	code := run(ctx, args, &stdout, &stderr, func(name string) string { return env[name] })
	return outcome{code, stdout.String(), stderr.String()}
}

// patientApp is newApp, but a machine that stalls is no reason to give up.
func patientApp(stdout, stderr io.Writer, env map[string]string) *app {
	a := newApp(stdout, stderr, func(name string) string { return env[name] })
	a.connect.Timeout, a.completeTime = time.Minute, time.Minute
	return a
}

// runPatiently is run by such a one.
func runPatiently(ctx context.Context, args []string, stdout, stderr io.Writer, env map[string]string) int {
	return patientApp(stdout, stderr, env).run(ctx, args)
}

// servers are what commands run against, and how a command line names them.
type servers struct {
	t     testing.TB
	flags []string
	env   map[string]string
	rdb   redistest.Client     // of a user with all rights
	addr  string               // if it is one server
	mini  *miniredis.Miniredis // if it is in memory

	input    func() io.Reader // what the user types, or a program writes
	terminal bool             // it is typed
}

// rrl runs a command line, formatted as fmt.Sprintf does. Its words may be quoted as in Go.
func (s servers) rrl(format string, args ...any) outcome {
	s.t.Helper()
	return s.run(s.t.Context(), story.Words(fmt.Sprintf(format, args...))...)
}

func (s servers) run(ctx context.Context, args ...string) outcome {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	a := patientApp(&stdout, &stderr, s.env)
	if a.terminal = s.terminal; s.input != nil {
		a.in = s.input()
	}
	code := a.run(ctx, append(args, s.flags...))
	return outcome{code, stdout.String(), stderr.String()}
}

// rrl runs a command line that names no server.
func rrl(t testing.TB, format string, args ...any) outcome {
	t.Helper()
	return servers{t: t}.rrl(format, args...)
}

type server struct {
	*miniredis.Miniredis
	servers
}

func newServer(t testing.TB) server {
	t.Helper()
	m := miniredis.RunT(t)
	url := "redis://" + m.Addr()
	return server{m, servers{t: t, flags: []string{"--redis", url}, rdb: redistest.MiniClient(t, m, nil), addr: m.Addr(), mini: m}}
}

// alone returns a real Redis of the test's own.
func alone(t testing.TB, args ...string) servers {
	t.Helper()
	s := redistest.StartRedis(t, args...)
	return servers{t: t, flags: []string{"--redis", s.Addr()}, rdb: s.Client(t, nil), addr: s.Addr()}
}

// startOfClock is a whole second, as buckets count them.
var startOfClock = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// TestScripts plays those of testdata/script, each story on a server of its own whose clock stands still.
func TestScripts(t *testing.T) {
	t.Parallel()
	story.Run(t, func(t *testing.T, _ string, steps []story.Step) {
		t.Helper()
		s := newServer(t)
		s.SetTime(startOfClock)
		s.ClockTTL(true)
		for _, step := range steps {
			s.step(step)
		}
	})
}

// play runs the steps of a script, in which the pairs are replaced.
func (s servers) play(script string, pairs ...string) {
	s.t.Helper()
	for _, step := range story.Steps(s.t, script, pairs...) {
		s.step(step)
	}
}

// step runs a line of a script, a command line of rrl with its outcome:
//
//	acquire orders
//	acquire orders => granted 1 permit, 4 left
//	acquire orders -> denied 1 permit...
//	acquire none   !> none: limiter has no rate
//	show orders    =~ (?m)^ +in use +1$
//
// The mark begins with = if the answer is yes, as it is without a mark, with - if it is no, and with ! after an error.
// Behind => and -> stands a line, the beginning of what is printed, or JSON; behind ~ a regular expression; behind !> a part
// of an error, which must change nothing. Beside rrl's there are these commands:
//
//	redis HSET bad rate x                   of the server, with its answer
//	clock 1m                                sets the server's clock, from the script's start
//	default orders 10/1h => 10              a permit for a program with this default and keep-alive time, and the limit
//	reserve orders 10/1h 2 1m 3             a reservation by such a program, with its hold, and what is settled of it or nothing
//	complete show api: => api:a api:b :4    what a shell offers, and what cobra says to it: no files
//	close                                   ends the server
//	input "orders\n" update-rate - 5/1h     rrl, with this on standard input
//	typed "n\n" delete orders -> delete orders, a limiter of 5/1h? [y/N] | nothing changed
//
// The last is on a terminal, and its outcome what is written to standard error and standard output.
func (s servers) step(step story.Step) {
	s.t.Helper()
	switch args := step.Words; args[0] {
	case "redis":
		step.Redis(s.t, s.rdb)
		return
	case "clock":
		s.mini.SetTime(startOfClock.Add(step.Span(s.t, 1)))
		return
	case "default", "reserve":
		s.byDefault(step)
		return
	case "complete":
		got := servers{t: s.t, env: s.env}.rrl("__complete %s %s", strings.Join(s.flags, " "), step.Line[len("complete "):strings.Index(step.Line, " =>")])
		assert.Equal(s.t, exitYes, got.code)
		assert.Equal(s.t, step.Want, strings.Join(strings.Fields(got.stdout), " "), step.Line)
		return
	case "close":
		s.mini.Close()
		return
	case "input", "typed":
		s.terminal = args[0] == "typed"
		s.input = func() io.Reader { return strings.NewReader(args[1]) }
		step.Words = args[2:]
	}
	switch step.Mark {
	case "":
		s.answers("=>", "...", step.Words...)
	case "!>":
		s.fails(step.Want, step.Words...)
	default:
		s.answers(step.Mark, step.Want, step.Words...)
	}
}

// byDefault takes or reserves permits by a handle of its own: that compares its default at its first request.
func (s servers) byDefault(step story.Step) {
	s.t.Helper()
	var cfg rratelimiter.Config
	var err error
	cfg.Rate, cfg.Interval, err = parseRate(step.Words[2])
	require.NoError(s.t, err)
	if step.Words[0] == "reserve" {
		l := limitertest.ByDefault(limitertest.NewClient(s.t, s.rdb), step.Words[1], cfg)
		r := limitertest.Reserve(s.t, l, step.Int(s.t, 3), rratelimiter.Hold(step.Span(s.t, 4)))
		if used := step.Int(s.t, 5); used > 0 {
			require.NoError(s.t, r.Settle(s.t.Context(), used))
		}
		return
	}
	cfg.KeepAlive = step.Span(s.t, 3)
	l := limitertest.ByDefault(limitertest.NewClient(s.t, s.rdb), step.Words[1], cfg)
	assert.Equal(s.t, step.Want, fmt.Sprint(limitertest.Take(s.t, l, 1).Limit), step.Line)
}

func (s servers) answers(mark, want string, args ...string) {
	s.t.Helper()
	got := s.answered(args...)
	require.Equal(s.t, map[byte]int{'=': exitYes, '-': exitNo, '!': exitError}[mark[0]], got.code, "%q: %+v", args, got)
	if s.terminal {
		require.Equal(s.t, strings.ReplaceAll(want, `\n`, "\n")+"\n", got.stderr+"| "+got.stdout, "%q", args)
		return
	}
	require.Empty(s.t, got.stderr, "%q", args)
	begin, open := strings.CutSuffix(want, "...")
	switch {
	case mark[1] == '~':
		require.Regexp(s.t, want, got.stdout, "%q", args)
	case open:
		require.Equal(s.t, begin, got.stdout[:min(len(begin), len(got.stdout))], "%q: %+v", args, got)
	case strings.HasPrefix(want, "{"):
		require.JSONEq(s.t, want, got.stdout, "%q", args)
		require.Equal(s.t, 1, strings.Count(got.stdout, "\n"), "%q: %+v", args, got)
	default:
		require.Equal(s.t, want+"\n", got.stdout, "%q", args)
	}
}

// answered runs a command again if the time for which it waits for permits was over before a slow machine's answer came.
func (s servers) answered(args ...string) (got outcome) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		got = s.run(s.t.Context(), args...)
		if got.code != exitError || !slices.Contains(args, "--timeout") || time.Now().After(end) {
			return got
		}
	}
}

// fails runs a command that must end with an error, on one line or as JSON, and change nothing.
func (s servers) fails(stderr string, args ...string) {
	s.t.Helper()
	dump := func() string {
		if s.mini == nil {
			return ""
		}
		return s.mini.Dump()
	}
	before := dump()
	got := s.run(s.t.Context(), args...)
	assert.NotContains(s.t, got.stderr, "--force", "no error would have a key deleted that is no limiter's")
	assert.Equal(s.t, exitError, got.code, "%q", args)
	assert.Empty(s.t, got.stdout, "%q", args)
	assert.Contains(s.t, got.stderr, stderr, "%q", args)
	assert.Regexp(s.t, `^rrl: .*\n$`, got.stderr, "%q", args)
	got = s.run(s.t.Context(), append(args, "--json")...)
	assert.Equal(s.t, exitError, got.code, "%q", args)
	assert.Empty(s.t, got.stdout, "%q", args)
	assert.Contains(s.t, object(s.t, got.stderr)["error"], stderr, "%q", args)
	assert.NotRegexp(s.t, `^[^"/]*[a-z][A-Z]|0m0s|WRONGTYPE|user_script`, got.stderr[len(`{"error":"`):], "it speaks of Go or Lua")
	assert.Equal(s.t, before, dump(), "%q", args)
}

func object(t testing.TB, text string) map[string]any {
	t.Helper()
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &v), "%q", text)
	return v
}

func (s servers) list(pattern string) (all []listed) {
	s.t.Helper()
	got := s.rrl("ls --json %q", pattern)
	require.Equal(s.t, exitYes, got.code, "%+v", got)
	require.NoError(s.t, json.Unmarshal([]byte(got.stdout), &all), "%+v", got)
	return all
}

func TestURL(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.RequireAuth("secret")
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("secret\n"), 0o600))
	right, wrong := "redis://:secret@"+s.Addr(), "redis://:wrong@"+s.Addr()
	for name, c := range map[string]struct {
		env, line string
		code      int
		stderr    string
	}{
		"from the environment": {right, "ls", exitYes, ""},
		"by flag":              {"", "ls --redis " + right, exitYes, ""},
		"the flag wins":        {wrong, "ls --redis " + right, exitYes, ""},
		"a password file wins": {wrong, "ls --password-file " + file, exitYes, ""},
		"wrong password":       {wrong, "ls", exitError, "WRONGPASS"},
		// As of a variable that is not set: no reason to work on the server that is the default.
		"an empty address": {right, `delete orders --redis ""`, exitError, "rrl: --redis is empty\n"},
	} {
		got := servers{t: t, env: map[string]string{"REDIS_URL": c.env}}.rrl("%s", c.line)
		assert.Equal(t, c.code, got.code, "%s: %+v", name, got)
		assert.Contains(t, got.stderr, c.stderr, name)
		assert.NotContains(t, got.stderr, "secret", name)
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"", "--help", "help"} {
		assert.Contains(t, rrl(t, "%s", line).stdout, "Exit codes:")
	}
	for _, command := range newRoot(&app{}).Commands() {
		got := rrl(t, "%s --help", command.Name())
		assert.Equal(t, exitYes, got.code, command.Name())
		assert.Contains(t, got.stdout, "Examples:", command.Name())
		assert.Empty(t, got.stderr, command.Name())
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	assert.Contains(t, rrl(t, "--version").stdout, "rrl version")
	assert.Regexp(t, `^rrl \S+, commit \S+( and changes)?, go1\.\S+, \w+/\w+\n$`, rrl(t, "version").stdout)
	newer := "version 4.8.0 of Redisson is newer than 4.7.0, the newest that was tested, and counts as that"
	assert.Equal(t, "rrl: "+newer+"\n", rrl(t, "version --redisson 4.8.0").stderr)
	assert.Equal(t, map[string]any{"warning": newer}, object(t, rrl(t, "version --redisson 4.8.0 --json").stderr))
	asJSON := object(t, rrl(t, "version --json").stdout)
	for _, field := range []string{"version", "commit", "modified", "go", "platform"} {
		assert.Contains(t, asJSON, field)
	}
}

func TestCommands_WriteErrorIsAnError(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.Zero(t, s.rrl("set-rate orders 5/1h").code)
	for _, command := range []string{
		"ls", "show orders", "acquire orders", "release orders", "top --count 1", "watch orders --count 1", "doctor", "version",
		"bench --time 100ms --callers 1 --limiters 2", "demo --tries 1", "demo counter",
	} {
		for _, form := range []string{"", " --json"} {
			var stderr bytes.Buffer
			args := story.Words(command + form)
			if command != "demo counter" {
				args = append(args, s.flags...)
			}
			full := writer(func() error { return errors.New("no space left") })
			code := runPatiently(t.Context(), args, full, &stderr, nil)
			assert.Equal(t, exitError, code, "%q", args)
			assert.Contains(t, stderr.String(), "no space left", "%q", args)
		}
	}
}

func page(t *testing.T) string {
	t.Helper()
	return string(limitertest.Must(os.ReadFile("../../docs/rrl.md"))(t))
}

// What docs/rrl.md shows is what the commands print, run one after the other on one server.
func TestDocsShowWhatCommandsPrint(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	m.SetTime(time.Unix(1_800_000_000, 0))
	s := servers{t: t, env: map[string]string{"REDIS_URL": m.Addr()}}
	commands := 0
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(page(t), -1) {
		for _, shown := range strings.Split("\n"+block[1], "\n$ rrl ")[1:] {
			line, want, _ := strings.Cut(shown, "\n")
			got := s.run(t.Context(), strings.Fields(line)...)
			assert.Equal(t, strings.TrimSuffix(want, "\n"), strings.TrimSuffix(got.stdout+got.stderr, "\n"), "rrl %s", line)
			commands++
		}
	}
	assert.Equal(t, 7, commands)
}

func TestDocsNameEachCommandAndFlag(t *testing.T) {
	t.Parallel()
	text := page(t)
	root := newRoot(&app{})
	root.InitDefaultCompletionCmd()
	var commands []string
	for _, c := range root.Commands() {
		commands = append(commands, c.Name())
		assert.Contains(t, text, "- `rrl "+c.Name(), "docs/rrl.md says nothing of this command")
	}
	for _, row := range regexp.MustCompile("(?m)^- `rrl ([a-z-]+)").FindAllStringSubmatch(text, -1) {
		assert.True(t, slices.Contains(commands, row[1]), "docs/rrl.md has a command %q", row[1])
	}
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		assert.Contains(t, text, "`--"+f.Name, "docs/rrl.md says nothing of this flag")
	})
}

// TestDemo_MatchesPictureInReadme holds README's picture against what the demo prints.
// "go test ./cmd/rrl -run TestDemo_MatchesPictureInReadme -update" records it anew.
func TestDemo_MatchesPictureInReadme(t *testing.T) {
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
	story.Golden(t, "../../docs/demo.svg", got)
}

// pictureHead shows each line from its moment on, and all of them if no movement is wanted.
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
