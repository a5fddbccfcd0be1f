package distribution

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// published returns the environment of a user who has none of our modules, once the
// repository in dir is pushed: its HEAD and its tags are at the modules' address. All other
// modules come from where this machine gets them.
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

// startProgram returns the program of docs/start.md.
func startProgram(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "start.md"))
	require.NoError(t, err)
	_, program, found := strings.Cut(string(page), "```go\n")
	require.True(t, found)
	program, _, _ = strings.Cut(program, "```")
	return program
}

// withHeading returns the files with a section for the version in CHANGELOG.md.
func withHeading(all []source, version string) []source {
	for i, s := range all {
		if s.name == "CHANGELOG.md" {
			all[i].text = []byte(strings.Replace(string(s.text), "## [Unreleased]\n", "## [Unreleased]\n\n## ["+version+"] - 2026-01-02\n", 1))
		}
	}
	return all
}

// release runs scripts/release.sh in a clone without remotes and returns what it says.
func release(t *testing.T, dir, version string, env ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "scripts/release.sh", version)
	cmd.Dir, cmd.Env = dir, append(append(os.Environ(), someone...), append(env, "RRL_RELEASE_UNTESTED=1")...)
	said, err := cmd.CombinedOutput()
	return string(said), err
}

func TestRelease_UsersGetItByTheWordsOfTheDocs(t *testing.T) {
	t.Parallel()
	needsBuild(t)
	const version = "v0.99.0"
	dir := t.TempDir()
	clone(t, withHeading(sources(t), "0.99.0"), dir)
	said, err := release(t, dir, version)
	require.NoError(t, err, said)

	var tags []string
	for _, m := range modules(t) {
		if !m.program() {
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
	require.NoError(t, os.WriteFile(filepath.Join(shop, "main.go"), []byte(startProgram(t)), 0o600))
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
	script, err := os.ReadFile(filepath.Join(root, "scripts", "release.sh"))
	require.NoError(t, err)
	return []source{
		{"scripts/release.sh", script, 0o755},
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
	git := func(args ...string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			run(t, dir, someone, "git", args...)
		}
	}
	write := func(name, text string, then func(t *testing.T, dir string)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			then(t, dir)
		}
	}
	nothing := func(*testing.T, string) {}
	commit := git("commit", "-q", "-a", "-m", "a change")
	for name, c := range map[string]struct {
		version string
		before  func(t *testing.T, dir string)
		want    string
	}{
		"NoVersion":      {"", nothing, "usage: make release VERSION=v1.2.3"},
		"NoSemver":       {"0.3", nothing, "usage: make release VERSION=v1.2.3"},
		"SecondMajor":    {"v2.0.0", nothing, "usage: make release VERSION=v1.2.3"},
		"NoBranch":       {"v0.3.0", git("checkout", "-q", "--detach"), "no branch is checked out"},
		"NotCommitted":   {"v0.3.0", write("new.go", "package rratelimiter\n", nothing), "not committed"},
		"TagExists":      {"v0.3.0", git("tag", "otellimit/v0.3.0"), "the tag otellimit/v0.3.0 exists"},
		"NoHeading":      {"v0.4.0", nothing, "no heading '## [0.4.0] - YYYY-MM-DD'"},
		"NotTested":      {"v0.3.0", git("remote", "add", "origin", "https://example.com"), "for a clone without remotes"},
		"DoesNotBuild":   {"v0.3.0", write("otellimit/otellimit.go", "package otellimit\n\nimport _ \""+module+"/limit\"\n", commit), "/limit"},
		"OfAnotherPlace": {"v0.3.0", write("cmd/rrl/go.mod", "module example.com/rrl\n", commit), "example.com/rrl"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			clone(t, small(t), dir)
			c.before(t, dir)
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

func TestRelease_TagsEachModule(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("make release runs in a shell")
	}
	dir := t.TempDir()
	clone(t, small(t), dir)
	said, err := release(t, dir, "v0.3.0")
	require.NoError(t, err, said)
	assert.Contains(t, said, "git push --atomic origin main v0.3.0 cmd/rrl/v0.3.0 otellimit/v0.3.0\n")
	assert.Equal(t, []string{"cmd/rrl/v0.3.0", "otellimit/v0.3.0", "v0.3.0"}, strings.Fields(run(t, dir, nil, "git", "tag", "--points-at", "HEAD")))
	assert.NotContains(t, run(t, dir, nil, "git", "grep", "-h", module+" v", "--", "*go.mod", "*go.sum"), "v0.2.0")
}
