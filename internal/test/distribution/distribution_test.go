// Package distribution holds tests of what users get: the modules, whose go.mod files
// must work outside of this repository too, and the builds of make dist.
package distribution

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

const (
	root   = "../../.."
	module = "github.com/rratelimiter/rratelimiter"
)

// goMod is what go mod edit -json tells of a go.mod file.
type goMod struct {
	dir    string // from the root, "." for the root's own
	Module struct{ Path string }
	Go     string

	Require []struct{ Path, Version string }
	Replace []struct {
		Old, New struct{ Path, Version string }
	}
	Exclude []any
}

func modules(t *testing.T) []goMod {
	t.Helper()
	var all []goMod
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return cmp.Or(err, fs.SkipDir)
		}
		if d.Name() != "go.mod" {
			return nil
		}
		text, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json", path).Output()
		if err != nil {
			return err
		}
		m := goMod{}
		if m.dir, err = filepath.Rel(root, filepath.Dir(path)); err != nil {
			return err
		}
		all = append(all, m)
		return json.Unmarshal(text, &all[len(all)-1])
	}))
	require.NotEmpty(t, all)
	return all
}

func readText(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	require.NoError(t, err)
	return string(text)
}

// A module that is not in go.work can't be built in a clone.
func TestWorkspace_HasAllModules(t *testing.T) {
	t.Parallel()
	var work struct {
		Go      string
		Use     []struct{ DiskPath string }
		Replace []any
	}
	require.NoError(t, json.Unmarshal([]byte(run(t, root, nil, "go", "work", "edit", "-json", "go.work")), &work))
	assert.Empty(t, work.Replace)
	var used, want []string
	for _, u := range work.Use {
		used = append(used, filepath.Clean(u.DiskPath))
	}
	for _, m := range modules(t) {
		want = append(want, m.dir)
		assert.Equal(t, work.Go, m.Go, "the Go that %s asks for", m.dir)
	}
	assert.ElementsMatch(t, want, used)
}

func ours(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

// What a module replaces counts in this repository only. go install refuses a module that replaces or excludes others.
func TestModules_RequireTheSame(t *testing.T) {
	t.Parallel()
	all := modules(t)
	versions := map[string]bool{}
	for _, m := range all {
		assert.Equal(t, strings.TrimSuffix(module+"/"+m.dir, "/."), m.Module.Path)
		var required []string
		for _, r := range m.Require {
			if ours(r.Path) {
				required = append(required, r.Path)
				versions[r.Version] = true
			}
		}
		assert.Equal(t, m.dir != ".", len(required) > 0, m.dir)
		var replaced []string
		for _, r := range m.Replace {
			replaced = append(replaced, r.Old.Path)
			assert.True(t, ours(r.Old.Path), "%s replaces %s", m.dir, r.Old.Path)
			assert.Empty(t, r.Old.Version+r.New.Version)
			at, err := filepath.Rel(root, filepath.Join(root, m.dir, r.New.Path))
			require.NoError(t, err)
			assert.Equal(t, r.Old.Path, strings.TrimSuffix(module+"/"+at, "/."), "%s replaces %s", m.dir, r.Old.Path)
		}
		slices.Sort(required)
		slices.Sort(replaced)
		if m.dir == "." || m.dir == "cmd/rrl" {
			assert.Empty(t, m.Replace, m.dir)
			assert.Empty(t, m.Exclude, m.dir)
		} else {
			assert.Equal(t, required, replaced, m.dir)
		}
	}
	assert.Len(t, versions, 1, "the versions that modules require of each other")
}

// Modules require a release that CHANGELOG.md has, or a commit: go get finds both.
func TestModules_RequireWhatExists(t *testing.T) {
	t.Parallel()
	needsClone(t)
	changes, commits := readText(t, "CHANGELOG.md"), map[string]bool{}
	for _, m := range modules(t) {
		for _, r := range m.Require {
			if ours(r.Path) && !strings.Contains(changes, "\n## ["+strings.TrimPrefix(r.Version, "v")+"] - ") {
				commits[r.Path+"@"+r.Version] = true
			}
		}
	}
	if len(commits) == 0 {
		return
	}
	if run(t, root, nil, "git", "rev-parse", "--is-shallow-repository") == "true" {
		t.Skip("a shallow clone may lack the commit")
	}
	user := published(t, root)
	for commit := range commits {
		assert.Equal(t, strings.Replace(commit, "@", " ", 1), run(t, t.TempDir(), user, "go", "list", "-m", commit))
	}
}

// run runs a command and returns its output. Without a network for modules that this machine does not have, the test is skipped.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil && regexp.MustCompile(`dial tcp|module lookup disabled`).Match(failed.Bytes()) {
		redistest.SkipOrFail(t, "no network for modules that go get wants")
	}
	require.NoError(t, err, "%s %s: %s", name, args, failed.String())
	return strings.TrimSpace(string(out))
}

type source struct {
	name string // from the root
	text []byte
	mode fs.FileMode
}

// sources returns the files of the repository as they are now.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	for name := range strings.SplitSeq(run(t, root, nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"), "\x00") {
		path := filepath.Join(root, name)
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue // it was removed, or is a link to something that is not source
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		all = append(all, source{name, text, info.Mode().Perm()})
	}
	require.NotEmpty(t, all)
	return all
}

// needsBuild skips a test that builds much, or that git could not tell what.
func needsBuild(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds commands")
	}
	if runtime.GOOS == "windows" {
		t.Skip("make dist and make release run in a shell")
	}
	needsClone(t)
}

func needsClone(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("this is no clone")
	}
}

// someone commits, whatever this machine's settings of git are.
var someone = []string{
	"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_AUTHOR_DATE=2026-01-01T00:00:00Z",
	"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z",
	"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_NOSYSTEM=1",
}

// clone puts the sources into a new repository, the same commit each time.
func clone(t *testing.T, all []source, dir string) {
	t.Helper()
	for _, s := range all {
		path := filepath.Join(dir, s.name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, s.text, s.mode))
	}
	run(t, dir, someone, "git", "init", "-q", "-b", "main")
	run(t, dir, someone, "git", "add", "-A")
	run(t, dir, someone, "git", "commit", "-q", "-m", "as it is")
}

func TestBuilds_AreReproducible(t *testing.T) {
	t.Parallel()
	needsBuild(t)
	top, all := t.TempDir(), sources(t)
	platform := runtime.GOOS + "/" + runtime.GOARCH
	var sums [][]byte
	for place, env := range map[string][]string{
		"a": nil, "another/place with a longer name": {"GOFLAGS=-ldflags=-X=main.x=y", "GOAMD64=v2", "TZ=Asia/Tokyo", "LC_ALL=C"},
	} {
		dir := filepath.Join(top, place)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		clone(t, all, dir)
		out := filepath.Join(dir, "dist")
		run(t, dir, env, "scripts/dist.sh", out, platform)
		sum, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
		require.NoError(t, err)
		sums = append(sums, sum)
		suffix := "-" + runtime.GOOS + "-" + runtime.GOARCH
		assert.Regexp(t, `^[0-9a-f]{64}  rratelimitd`+suffix+"\n[0-9a-f]{64}  rrl"+suffix+"\n$", string(sum))
		for _, name := range []string{"rrl" + suffix, "rratelimitd" + suffix} {
			program, err := os.ReadFile(filepath.Join(out, name))
			require.NoError(t, err)
			assert.NotContains(t, string(program), top, "the folder is in the program")
			assert.Contains(t, run(t, dir, nil, filepath.Join(out, name), "--version"), run(t, dir, nil, "git", "rev-parse", "HEAD"))
		}
		assert.Empty(t, run(t, dir, nil, "git", "status", "--porcelain"), "git does not ignore the builds")
	}
	assert.Equal(t, string(sums[0]), string(sums[1]))
}

// published returns the environment of a user who has none of our modules, once the repository in dir is pushed: its HEAD and
// its tags are at the modules' address. All other modules come from where this machine gets them.
func published(t *testing.T, dir string) []string {
	t.Helper()
	top := t.TempDir()
	repository := filepath.Join(top, "repository")
	run(t, top, nil, "git", "init", "-q", "--bare", "-b", "main", repository)
	run(t, dir, nil, "git", "push", "-q", "--tags", repository, "HEAD:refs/heads/main")
	known, ordinary := run(t, root, nil, "go", "env", "GOMODCACHE"), run(t, root, nil, "go", "env", "GOPROXY")
	return []string{
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://" + repository + ".insteadOf", "GIT_CONFIG_VALUE_0=https://" + module,
		"GOPROXY=file://" + known + "/cache/download," + ordinary, "GONOPROXY=" + module, "GOPRIVATE=", "GOSUMDB=off",
		"GOENV=off", "GOWORK=off", "GOFLAGS=-trimpath -modcacherw", "CGO_ENABLED=0",
		"GOMODCACHE=" + filepath.Join(top, "modules"), "GOBIN=" + filepath.Join(top, "bin"),
	}
}

// release runs scripts/release.sh in a clone without remotes and returns what it says.
func release(t *testing.T, dir, version string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "scripts/release.sh", version)
	cmd.Dir, cmd.Env = dir, append(append(os.Environ(), someone...), "RRL_RELEASE_UNTESTED=1")
	said, err := cmd.CombinedOutput()
	return string(said), err
}

func TestRelease_UsersGetItByTheWordsOfTheDocs(t *testing.T) {
	t.Parallel()
	needsBuild(t)
	const version = "v0.99.0"
	dir, all := t.TempDir(), sources(t)
	for i, s := range all {
		if s.name == "CHANGELOG.md" {
			all[i].text = bytes.Replace(s.text, []byte("## [Unreleased]\n"), []byte("## [Unreleased]\n\n## [0.99.0] - 2026-01-02\n"), 1)
		}
	}
	clone(t, all, dir)
	said, err := release(t, dir, version)
	require.NoError(t, err, said)
	var tags []string
	for _, m := range modules(t) {
		if !strings.HasPrefix(m.dir, "examples/") && m.dir != "benchmarks" && m.dir != "dashboard/browser" { // built here only
			tags = append(tags, strings.TrimPrefix(m.dir+"/"+version, "./"))
		}
	}
	assert.ElementsMatch(t, tags, strings.Fields(run(t, dir, nil, "git", "tag", "--points-at", "HEAD")))
	for _, tag := range tags {
		assert.Contains(t, said, " "+tag, "what to push")
	}
	assert.Empty(t, run(t, dir, nil, "git", "status", "--porcelain"))
	for required := range strings.Lines(run(t, dir, nil, "git", "grep", "-hE", "^(\t|require )"+module, "--", "*go.mod")) {
		assert.Contains(t, required, " "+version)
	}
	user := published(t, dir)
	run(t, dir, user, "go", "install", module+"/cmd/rrl@latest")
	assert.Contains(t, run(t, dir, nil, filepath.Join(run(t, dir, user, "go", "env", "GOBIN"), "rrl"), "--version"), version)
	run(t, filepath.Join(dir, "cmd", "rrl"), append(user, "GOFLAGS=-mod=readonly -modcacherw"), "go", "list", "-deps", ".")
	shop := t.TempDir()
	_, program, found := strings.Cut(readText(t, "docs", "start.md"), "```go\n")
	require.True(t, found)
	program, _, _ = strings.Cut(program, "```")
	require.NoError(t, os.WriteFile(filepath.Join(shop, "main.go"), []byte(program), 0o600))
	run(t, shop, user, "go", "mod", "init", "shop")
	run(t, shop, user, "go", "mod", "tidy")
	run(t, shop, user, "go", "build", "-o", "shop", ".")
	listed := run(t, shop, user, "go", "list", "-m", "all")
	assert.Contains(t, listed, module+" "+version)
	assert.NotContains(t, listed, "github.com/spf13/", "users get what only rrl needs")
}

// small are the files of a repository in which a release takes moments.
func small(t *testing.T) []source {
	t.Helper()
	return []source{
		{"scripts/release.sh", []byte(readText(t, "scripts", "release.sh")), 0o755},
		{"CHANGELOG.md", []byte("# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2026-01-02\n"), 0o600},
		{"go.mod", []byte("module " + module + "\n\ngo 1.26.0\n"), 0o600},
		{"limiter.go", []byte("package rratelimiter\n"), 0o600},
		{"cmd/rrl/go.mod", []byte("module " + module + "/cmd/rrl\n\ngo 1.26.0\n\nrequire " + module + " v0.2.0\n"), 0o600},
		{"cmd/rrl/go.sum", []byte(module + " v0.2.0 h1:x\n"), 0o600},
		{"cmd/rrl/main.go", []byte(`package main

import (
	"fmt"
	"runtime/debug"

	_ "` + module + `"
)

func main() {
	info, _ := debug.ReadBuildInfo()
	fmt.Println(info.Main.Version)
}
`), 0o600},
		{"otellimit/go.mod", []byte("module " + module + "/otellimit\n\ngo 1.26.0\n\nreplace " + module + " => ..\n\nrequire (\n\t" + module + " v0.2.0\n)\n"), 0o600},
		{"otellimit/otellimit.go", []byte("package otellimit\n\nimport _ \"" + module + "\"\n"), 0o600},
	}
}

func TestRelease_ChangesNothingIfACheckFails(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("make release runs in a shell")
	}
	for name, c := range map[string]struct{ version, before, want string }{
		"NoSemver":     {"0.3", "", "usage: make release VERSION=v1.2.3"},
		"SecondMajor":  {"v2.0.0", "", "usage: make release VERSION=v1.2.3"},
		"NoBranch":     {"v0.3.0", "git checkout -q --detach", "no branch is checked out"},
		"NotCommitted": {"v0.3.0", "echo package rratelimiter > new.go", "not committed"},
		"TagExists":    {"v0.3.0", "git tag otellimit/v0.3.0", "the tag otellimit/v0.3.0 exists"},
		"NoHeading":    {"v0.4.0", "", "no heading '## [0.4.0] - YYYY-MM-DD'"},
		"NotTested":    {"v0.3.0", "git remote add origin https://example.com", "for a clone without remotes"},
		"DoesNotBuild": {
			"v0.3.0", `printf 'package otellimit\n\nimport _ "` + module + `/limit"\n' > otellimit/otellimit.go; git commit -qam change`, "/limit",
		},
		"OfAnotherPlace": {"v0.3.0", "echo module example.com/rrl > cmd/rrl/go.mod; git commit -qam change", "example.com/rrl"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			clone(t, small(t), dir)
			run(t, dir, someone, "sh", "-c", c.before)
			state := func() string {
				return run(t, dir, nil, "git", "for-each-ref") + run(t, dir, nil, "git", "status", "--porcelain") + run(t, dir, nil, "git", "worktree", "list")
			}
			before := state()
			said, err := release(t, dir, c.version)
			require.Error(t, err)
			assert.Contains(t, said, c.want)
			assert.Equal(t, before, state())
		})
	}
}
