// Package distribution holds tests of what users get: the modules, whose go.mod files
// must work outside of this repository too, and the builds of make dist.
package distribution

import (
	"archive/zip"
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

// program reports whether the module is built in this repository only.
func (m goMod) program() bool {
	return strings.HasPrefix(m.dir, "examples/") || m.dir == "benchmarks" || m.dir == "dashboard/browser"
}

// command reports whether the module is that of rrl, which go install gets.
func (m goMod) command() bool { return m.dir == "cmd/rrl" }

// modules returns those of the repository.
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

var (
	nextNamed = regexp.MustCompile(`\n## \[Unreleased\]\n\nThe next release is (\d+\.\d+\.\d+[-.\w]*)\.\n`)
	released  = regexp.MustCompile(`\n## \[(\d+\.\d+\.\d+[-.\w]*)\] - `)
)

// version returns the release that is next, or the last one if CHANGELOG.md names
// none yet.
func version(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	require.NoError(t, err)
	for _, pattern := range []*regexp.Regexp{nextNamed, released} {
		if found := pattern.FindSubmatch(text); found != nil {
			return "v" + string(found[1])
		}
	}
	require.Fail(t, "CHANGELOG.md names no release")
	return ""
}

// go install refuses a module that replaces or excludes others.
func TestTheRootAndTheCommandReplaceNothing(t *testing.T) {
	t.Parallel()
	for _, m := range modules(t) {
		if m.dir == "." || m.command() {
			assert.Empty(t, m.Replace, m.dir)
			assert.Empty(t, m.Exclude, m.dir)
		}
		if m.dir == "." {
			assert.Equal(t, module, m.Module.Path)
			for _, r := range m.Require {
				assert.False(t, ours(r.Path), "the root requires %s", r.Path)
			}
		}
	}
}

// A module that is not in go.work can't be built in a clone.
func TestTheWorkspaceHasAllModules(t *testing.T) {
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
		assert.Equal(t, m.Go, work.Go)
	}
	assert.ElementsMatch(t, want, used)
}

func ours(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

func TestThePageOnVersionsSaysHowToGetThem(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs", "versions.md"))
	require.NoError(t, err)
	for _, m := range modules(t) {
		if !m.program() && !m.command() {
			assert.Contains(t, string(page), "`go get "+m.Module.Path+"`")
		}
	}
	assert.Contains(t, string(page), "`go install "+module+"/cmd/rrl@latest`")
}

// What a module replaces counts in this repository only: users of the module get the
// release that it requires.
func TestModulesRequireWhatIsReleased(t *testing.T) {
	t.Parallel()
	all := modules(t)
	want := version(t)
	for _, m := range all {
		assert.Equal(t, all[0].Go, m.Go, "the Go that %s asks for", m.dir)
		if m.dir == "." {
			continue
		}
		assert.Equal(t, module+"/"+m.dir, m.Module.Path)
		var required []string
		for _, r := range m.Require {
			if !ours(r.Path) {
				continue
			}
			required = append(required, r.Path)
			assert.Equal(t, want, r.Version, "%s requires %s", m.dir, r.Path)
		}
		assert.NotEmpty(t, required, m.dir)
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
		if !m.command() {
			assert.Equal(t, required, replaced, m.dir)
		}
	}
}

// run runs a command and returns its output. Without a network for modules that this
// machine does not have, the test is skipped.
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

// source is a file of the repository.
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
		t.Skip("builds rrl")
	}
	if runtime.GOOS == "windows" {
		t.Skip("make dist runs in a shell")
	}
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("this is no clone")
	}
}

// clone puts the sources into a new repository, the same commit each time.
func clone(t *testing.T, all []source, dir string) {
	t.Helper()
	for _, s := range all {
		path := filepath.Join(dir, s.name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, s.text, s.mode))
	}
	env := []string{
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_AUTHOR_DATE=2026-01-01T00:00:00Z",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z",
	}
	run(t, dir, env, "git", "init", "-q", "-b", "main")
	run(t, dir, env, "git", "add", "-A")
	run(t, dir, env, "git", "-c", "core.hooksPath=/dev/null", "commit", "-q", "-m", "as it is")
}

func TestBuildsAreTheSameWhereverTheyAreMade(t *testing.T) {
	t.Parallel()
	needsBuild(t)
	top, all := t.TempDir(), sources(t)
	platform := runtime.GOOS + "/" + runtime.GOARCH
	var sums [][]byte
	for _, place := range []struct {
		dir string
		env []string
	}{
		{"a", nil},
		{"another/place with a longer name", []string{"GOFLAGS=-ldflags=-X=main.x=y", "GOAMD64=v2", "TZ=Asia/Tokyo", "LC_ALL=C"}},
	} {
		dir := filepath.Join(top, place.dir)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		clone(t, all, dir)
		out := filepath.Join(dir, "dist")
		run(t, dir, place.env, "scripts/dist.sh", out, platform)
		sum, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
		require.NoError(t, err)
		sums = append(sums, sum)
		name := "rrl-" + runtime.GOOS + "-" + runtime.GOARCH
		assert.Regexp(t, `^[0-9a-f]{64}  `+name+"\n$", string(sum))
		program, err := os.ReadFile(filepath.Join(out, name))
		require.NoError(t, err)
		assert.NotContains(t, string(program), top, "the folder is in the program")
		assert.Contains(t, run(t, dir, nil, filepath.Join(out, name), "--version"), run(t, dir, nil, "git", "rev-parse", "HEAD"))
		assert.Empty(t, run(t, dir, nil, "git", "status", "--porcelain"), "git does not ignore the builds")
	}
	assert.Equal(t, string(sums[0]), string(sums[1]))

	// Go finds no commit in a worktree: a build must not be called a release then.
	tree := filepath.Join(top, "tree")
	run(t, filepath.Join(top, "a"), nil, "git", "worktree", "add", "-q", tree)
	built := exec.CommandContext(t.Context(), "scripts/dist.sh", "dist", platform)
	built.Dir = tree
	said, err := built.CombinedOutput()
	if err == nil {
		said = []byte(run(t, tree, nil, filepath.Join(tree, "dist", "rrl-"+runtime.GOOS+"-"+runtime.GOARCH), "--version"))
		assert.Contains(t, string(said), run(t, tree, nil, "git", "rev-parse", "HEAD"))
		return
	}
	assert.Contains(t, string(said), "build in a clone, not in a worktree")
}

// publish puts a module of this repository on a proxy for modules, as its release.
func publish(t *testing.T, proxy string, m goMod, all []goMod, release string) {
	t.Helper()
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	for _, s := range sources(t) {
		within := func(dir string) bool { return dir == "." || strings.HasPrefix(s.name, dir+"/") }
		nested := func(other goMod) bool { return len(other.dir) > len(m.dir) && other.dir != "." && within(other.dir) }
		if !within(m.dir) || slices.ContainsFunc(all, nested) {
			continue
		}
		inside, err := filepath.Rel(m.dir, s.name)
		require.NoError(t, err)
		f, err := w.Create(m.Module.Path + "@" + release + "/" + inside)
		require.NoError(t, err)
		_, err = f.Write(s.text)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	text, err := os.ReadFile(filepath.Join(root, m.dir, "go.mod"))
	require.NoError(t, err)
	dir := filepath.Join(proxy, m.Module.Path, "@v")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for name, content := range map[string][]byte{
		"list": []byte(release + "\n"), release + ".info": []byte(`{"Version":"` + release + `"}`), release + ".mod": text, release + ".zip": packed.Bytes(),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
}

// If the modules are released, a user gets them by the words of the docs.
func TestUsersGetTheModules(t *testing.T) {
	t.Parallel()
	needsBuild(t)
	top := t.TempDir()
	proxy, release, all := filepath.Join(top, "proxy"), version(t), modules(t)
	imports := ""
	get := []string{"get", module + "@latest"}
	for _, m := range all {
		if m.program() {
			continue
		}
		publish(t, proxy, m, all, release)
		if m.command() {
			continue
		}
		imports += "import _ \"" + m.Module.Path + "\"\n"
		if m.dir != "." {
			get = append(get, m.Module.Path+"@latest")
		}
	}
	known := run(t, root, nil, "go", "env", "GOMODCACHE")
	ordinary := run(t, root, nil, "go", "env", "GOPROXY")
	// go get reads the go.mod files of older releases too, which no build here wants:
	// they come from where this machine gets its modules.
	env := []string{
		"GOPROXY=file://" + proxy + ",file://" + known + "/cache/download," + ordinary, "GONOPROXY=none", "GOPRIVATE=", "GOSUMDB=off",
		"GOFLAGS=-trimpath -modcacherw", "GOWORK=off",
		"GOENV=off", "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0", // as make dist builds, so that much is built once
		"GOMODCACHE=" + filepath.Join(top, "modules"), "GOBIN=" + filepath.Join(top, "bin"),
	}
	run(t, top, env, "go", "install", module+"/cmd/rrl@latest")
	assert.Contains(t, run(t, top, nil, filepath.Join(top, "bin", "rrl"), "--version"), release)

	user := filepath.Join(top, "user")
	require.NoError(t, os.Mkdir(user, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(user, "main.go"), []byte("package main\n\n"+imports+"\nfunc main() {}\n"), 0o600))
	run(t, user, env, "go", "mod", "init", "example.com/user")
	run(t, user, env, "go", get...)
	assert.NotEmpty(t, run(t, user, env, "go", "list", "-deps", "."))
	assert.NotContains(t, run(t, user, env, "go", "list", "-m", "all"), "github.com/spf13/", "users get what only rrl needs")
}
