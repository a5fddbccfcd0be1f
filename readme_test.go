package rratelimiter_test

import (
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// files returns the repository's files whose names end so: each one's path and text.
func files(t *testing.T, end string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && strings.HasPrefix(entry.Name(), "."):
			return filepath.SkipDir
		case strings.HasSuffix(path, end):
			all[path] = readText(t, path)
		}
		return nil
	}))
	require.NotEmpty(t, all, end)
	return all
}

func readText(t *testing.T, path string) string {
	t.Helper()
	return string(limitertest.Must(os.ReadFile(path))(t))
}

// trimmed returns the lines of text that are not empty, without indentation.
func trimmed(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

var codeBlock = regexp.MustCompile("(?s)```([a-z]*)\n(.*?)```\n")

// goBlocks returns the Go code that a page shows.
func goBlocks(t *testing.T, page string) []string {
	t.Helper()
	var blocks []string
	for _, block := range codeBlock.FindAllStringSubmatch(readText(t, page), -1) {
		if block[1] == "go" {
			blocks = append(blocks, block[2])
		}
	}
	require.NotEmpty(t, blocks, "%s shows no Go code", page)
	return blocks
}

func TestDocs_CodeMatchesExamples(t *testing.T) {
	t.Parallel()
	for page, tests := range map[string]string{
		"reference": "example*_test.go", "production": "example*_test.go", "java": "example*_test.go", "coming-from": "example*_test.go",
		"testing": "rratelimitertest/rratelimitertest_test.go", "at-once": "example*_test.go", "partners": "httplimit/example*_test.go",
	} {
		paths := limitertest.Must(filepath.Glob(tests))(t)
		var lines []string
		for _, path := range paths {
			lines = append(lines, trimmed(readText(t, path))...)
		}
		examples := "\n" + strings.Join(lines, "\n") + "\n"
		for _, block := range goBlocks(t, "docs/"+page+".md") {
			code := strings.Join(trimmed(block), "\n") + "\n"
			assert.Contains(t, examples, "\n"+code, "docs/%s.md shows code that no test compiles", page)
		}
	}
}

// TestReadmeProgramRuns runs README's program as it stands, and compares what it prints with what README says.
func TestReadmeProgramRuns(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "building a program")
	_, after, _ := strings.Cut(readText(t, "README.md"), "It prints:\n\n```text\n")
	want, _, found := strings.Cut(after, "```")
	require.True(t, found, "README.md does not say what its program prints")
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(goBlocks(t, "README.md")[0]), 0o600))

	got := ""
	for tries := 0; got != want && tries < 5; tries++ { // a machine that pauses for a second lets the program have more
		cmd := exec.CommandContext(t.Context(), "go", "run", file)
		cmd.Env = append(os.Environ(), "REDIS_ADDR="+miniredis.RunT(t).Addr())
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		got = string(out)
	}
	assert.Equal(t, want, got)
}

// pageWords is how many words a page may have, if that is not wordsOfPage. CONTRIBUTING names the rule.
var pageWords = map[string]int{
	"README.md": 899, "docs/reference.md": 3100, "docs/how-it-works.md": 3100, "docs/http.md": 2400, "docs/servers.md": 2100,
	"docs/rrl.md": 2050, "docs/differences.md": 1900, "docs/development.md": 1900, "docs/production.md": 1700,
	"docs/dashboard.md": 1600,
}

const wordsOfPage = 1500

// A long page repeats itself, or says things where no one looks for them.
func TestPagesAndCommentsAreShort(t *testing.T) {
	t.Parallel()
	for path, text := range files(t, ".md") {
		if strings.HasSuffix(path, ".zh-CN.md") || path == "CHANGELOG.md" {
			continue // Chinese has no spaces to count by, and changes add up
		}
		most, listed := pageWords[path]
		if !listed {
			most = wordsOfPage
		}
		assert.LessOrEqual(t, len(strings.Fields(text)), most, "words of %s, as wc -w counts", path)
	}

	const lines = 15
	long := regexp.MustCompile(fmt.Sprintf(`(?m)(?:^\s*//.*\n){%d,}\s*(?:(?:func|type|const|var) (?:\(.*?\) )?)?[A-Z]\w*`, lines+1))
	for path, text := range files(t, ".go") {
		assert.Empty(t, long.FindString(text), "%s: a comment of more than %d lines belongs on a page, which it names", path, lines)
	}
}

// shown is what a README says in any language: the code, links and figures that it has.
type shown struct{ blocks, inline, links, figures []string }

func shownBy(t *testing.T, path string) shown {
	t.Helper()
	text := readText(t, path)
	_, text, _ = strings.Cut(text, "\n# ") // behind the links to other languages
	var s shown
	comment := regexp.MustCompile(`(?m)\s*(//|# ).*$`)
	for _, block := range codeBlock.FindAllStringSubmatch(text, -1) {
		s.blocks = append(s.blocks, block[1]+"\n"+comment.ReplaceAllString(block[2], ""))
	}
	text = codeBlock.ReplaceAllString(text, "")
	take := func(pattern string) []string {
		var found []string
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(match[1], "#") {
				match[1] = "#" // headings of its own have other names
			}
			found = append(found, match[1])
		}
		text = regexp.MustCompile(pattern).ReplaceAllString(text, "")
		slices.Sort(found)
		return found
	}
	s.inline = slices.Compact(take("`([^`]+)`"))
	s.links = take(`\]\(([^)]+)\)`)
	s.figures = take(`\b(\d[\d.]*\d|\d)`)
	return s
}

// What README.zh-CN.md says is held against README.md as far as a test can.
func TestReadme_SaysTheSameInChinese(t *testing.T) {
	t.Parallel()
	english, chinese := shownBy(t, "README.md"), shownBy(t, "README.zh-CN.md")
	assert.Len(t, english.blocks, 5)
	assert.Equal(t, english, chinese)
	for page, other := range map[string]string{"README.md": "README.zh-CN.md", "README.zh-CN.md": "README.md"} {
		first, _, _ := strings.Cut(readText(t, page), "\n")
		assert.Contains(t, first, "]("+other+")")
	}
}

func TestDocs_LinksResolve(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for path, text := range files(t, ".md") {
		text = codeBlock.ReplaceAllString(text, "")
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(file); !assert.NoError(t, err, "%s links to %s", path, match[1]) || anchor == "" {
				continue
			}
			assert.Contains(t, anchors(readText(t, file)), anchor, "%s links to %s", path, match[1])
		}
	}
}

// anchors returns what the headings of a page can be linked by.
func anchors(text string) []string {
	var found []string
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for line := range strings.Lines(codeBlock.ReplaceAllString(text, "")) {
		if heading := strings.TrimLeft(line, "#"); heading != line {
			heading = drop.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			found = append(found, strings.ReplaceAll(heading, " ", "-"))
		}
	}
	return found
}

// Pages name tests, files and folders that exist.
func TestDocs_NameWhatExists(t *testing.T) {
	t.Parallel()
	exist := map[string]bool{"TestName": true} // stands for any test
	for _, text := range files(t, "_test.go") {
		for _, match := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`).FindAllStringSubmatch(text, -1) {
			exist[match[1]] = true
		}
	}
	tests := regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark|Example)[A-Z_]\w*`)
	const folders = "internal|lua|tests|cmd|docs|compat_test|scripts|examples|benchmarks|codec|limit|httplimit|fixedwindow|dashboard"
	paths := regexp.MustCompile("`((?:" + folders + ")/[\\w./-]*\\w)/?[`:]")
	found := 0
	for page, text := range files(t, ".md") {
		for _, test := range tests.FindAllString(text, -1) {
			assert.True(t, exist[test], "%s names %s, which does not exist", page, test)
		}
		for _, match := range paths.FindAllStringSubmatch(text, -1) {
			if match[1] == "lua/name.lua" || strings.HasPrefix(match[1], "cmd/rrl/v") { // any script, a tag
				continue
			}
			found++
			_, err := os.Stat(match[1])
			assert.NoError(t, err, "%s names %s", page, match[1])
		}
	}
	assert.Greater(t, found, 100)
}

// A user who has the rights that docs/servers.md lists may run every script.
func TestServersPageListsTheScriptsCommands(t *testing.T) {
	t.Parallel()
	_, list, _ := strings.Cut(readText(t, "docs/servers.md"), "\n## The least rights\n")
	_, list, _ = strings.Cut(list, "```text\n")
	list, _, _ = strings.Cut(list, "```")
	want := []string{"+eval", "+evalsha"}
	for _, s := range lua.All() {
		if s == lua.Command {
			continue // its command is an argument
		}
		for _, match := range regexp.MustCompile(`redis\.p?call\('(\w+)'`).FindAllStringSubmatch(s.Source, -1) {
			want = append(want, "+"+strings.ToLower(match[1]))
		}
	}
	assert.Subset(t, strings.Fields(list), want)
	assert.Equal(t, strings.Fields(redistest.LeastCommands), strings.Fields(list))
}

// The options and errors of the package and those that docs/reference.md lists are the same.
func TestReferenceNamesEachOptionAndError(t *testing.T) {
	t.Parallel()
	declared := regexp.MustCompile(`(?m)^(?:func (With\w+)\(|\s+(Err\w+) +=)`)
	paths := limitertest.Must(filepath.Glob("*.go"))(t)
	reference := readText(t, "docs/reference.md")
	found := 0
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, match := range declared.FindAllStringSubmatch(readText(t, path), -1) {
			found++
			assert.Contains(t, reference, "`"+match[1]+match[2], "docs/reference.md says nothing of this option or error")
		}
	}
	assert.GreaterOrEqual(t, found, 20)
}

// Of each rule the table names files, each before what of it holds the rule.
func TestRulesAreWhereThePageSays(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(readText(t, "docs/development.md"), "\n## Where is the rule?\n")
	table, _, _ = strings.Cut(table, "\n## ")
	quoted := regexp.MustCompile("`([^`]+)`")
	checked := 0
	for row := range strings.Lines(table) {
		_, where, _ := strings.Cut(row, " | ")
		path, text := "", ""
		for _, match := range quoted.FindAllStringSubmatch(where, -1) {
			name := match[1]
			if strings.Contains(name, "/") {
				path = name
				info, err := os.Stat(path)
				if require.NoError(t, err, row); !info.IsDir() {
					text = readText(t, path)
				}
				continue
			}
			define := `^(?:local function|func|type|var|const) ` + name + `\b|^\t` + name + `(?: \w+)? =`
			if receiver, method, ok := strings.Cut(name, "."); ok {
				define = `^func \((?:\w+ )?\*?` + receiver + `(?:\[.*\])?\) ` + method + `\(`
			}
			assert.True(t, regexp.MustCompile("(?m)"+define).MatchString(text), "%s declares no %s, in the row %q", path, name, row)
			checked++
		}
	}
	assert.Greater(t, checked, 50)
}

// seconds are what a step's output has of the time since the steps before.
var seconds = regexp.MustCompile(`(t=|Retry-After: )\d+`)

// TestStart takes the steps of docs/start.md as they stand, with a Redis and ports of its own.
func TestStart(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "building programs")
	if _, err := exec.LookPath("curl"); err != nil {
		redistest.SkipOrFail(t, "no curl")
	}
	server := redistest.StartRedis(t)
	var config net.ListenConfig
	port := limitertest.Must(config.Listen(t.Context(), "tcp", "localhost:0"))(t)
	addr, dir := port.Addr().String(), t.TempDir()

	text := strings.ReplaceAll(readText(t, "docs/start.md"), "localhost:8080", addr)
	program := strings.NewReplacer("localhost:8080", addr, "httplimit.WithFailure(", "httplimit.WithTimeout(1e10), httplimit.WithFailure(").
		Replace(goBlocks(t, "docs/start.md")[0])
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	for name, of := range map[string]string{"shop": filepath.Join(dir, "main.go"), "rrl": "./cmd/rrl"} {
		out, err := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, name), of).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	env := append(os.Environ(), "REDIS_ADDR="+server.Addr(), "REDIS_URL=redis://"+server.Addr(), "PATH="+dir+":"+os.Getenv("PATH"))
	shop := exec.CommandContext(t.Context(), filepath.Join(dir, "shop"))
	shop.Env = env
	require.NoError(t, port.Close()) // not before: others may take it while programs are built
	require.NoError(t, shop.Start())
	t.Cleanup(func() { _, _ = shop.Process.Kill(), shop.Wait() })
	require.Eventually(t, func() bool {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
		return err == nil && conn.Close() == nil
	}, time.Minute, 10*time.Millisecond)

	ask, steps := "", 0
	sh := func(script string) string {
		run := exec.CommandContext(t.Context(), "bash", "-c", script)
		run.Env = env
		out, err := run.CombinedOutput()
		require.NoError(t, err, "%s%s", script, out)
		return strings.Join(trimmed(string(out)), "\n")
	}
	for _, step := range regexp.MustCompile("(?s)```sh\n([^`]*)```\n\n```text\n(.*?)```\n").FindAllStringSubmatch(text, -1) {
		if strings.Contains(step[1], "fay") {
			server.Crash()
		}
		if strings.Contains(step[1], "set-rate") {
			server.Restart(t)
			awaitRedisAsked(t, server.Client(t, nil), "http://"+addr+"/orders")
		}
		got := sh(ask + strings.ReplaceAll(step[1], "go install", "# go install"))
		assert.Contains(t, seconds.ReplaceAllString(got, "${1}n"), seconds.ReplaceAllString(strings.TrimSpace(step[2]), "${1}n"), step[1])
		if line, _, found := strings.Cut(step[1], "\n"); found && strings.HasPrefix(line, "ask()") {
			ask = line + "\n"
		}
		steps++
	}
	assert.Equal(t, 5, steps)
	assert.Contains(t, sh("rrl top --once; rrl doctor || [ $? = 1 ]"), "http:user:ann")
}

// awaitRedisAsked waits until the server at url asks Redis again after an outage. A request that Redis answers late does not do:
// the server leaves Redis alone after it, and decides the next one by itself.
func awaitRedisAsked(t *testing.T, rdb redistest.Client, url string) {
	t.Helper()
	users := 0
	require.Eventually(t, func() bool {
		users++
		user, from := fmt.Sprint("gus", users), fmt.Sprintf("203.0.%d.%d", users/200, users%200)
		for range 2 {
			request := limitertest.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody))(t)
			request.Header = http.Header{"X-User": {user}, "X-Forwarded-For": {from}}
			if answer, err := http.DefaultClient.Do(request); err != nil || answer.Body.Close() != nil {
				return false
			}
		}
		return rdb.Get(t.Context(), "{http:user:"+user+"}:value").Val() == "1"
	}, time.Minute, 100*time.Millisecond, "the server asks Redis again")
}
