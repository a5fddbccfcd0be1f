package distribution

import (
	"archive/zip"
	"bytes"
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
			continue // it was removed, or is a link to what is no source
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

// Where the modules are released, a user gets them by the words of the docs.
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
}
