// Package distribution holds tests of what users get: the modules, whose go.mod files
// must work outside of this repository too, and the builds of make dist.
package distribution

import (
	"cmp"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

// program tells a module that nobody imports: it is built in this repository only.
func (m goMod) program() bool {
	return strings.HasPrefix(m.dir, "examples/") || m.dir == "benchmarks" || m.dir == "dashboard/browser"
}

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

// version returns the release that is next, or the last one where CHANGELOG.md names
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
func TestTheRootReplacesNothing(t *testing.T) {
	t.Parallel()
	for _, m := range modules(t) {
		if m.dir == "." {
			assert.Equal(t, module, m.Module.Path)
			assert.Empty(t, m.Replace)
			assert.Empty(t, m.Exclude)
			for _, r := range m.Require {
				assert.False(t, ours(r.Path), "the root requires %s", r.Path)
			}
		}
	}
}

func ours(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

func TestThePageOnVersionsSaysHowToGetThem(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs", "versions.md"))
	require.NoError(t, err)
	for _, m := range modules(t) {
		if !m.program() {
			assert.Contains(t, string(page), "`go get "+m.Module.Path+"`")
		}
	}
	assert.Contains(t, string(page), "`go install "+module+"/cmd/rrl@latest`")
}

// What a module replaces counts in this repository only: whoever requires the module
// gets the release that it requires.
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
		assert.Equal(t, required, replaced, m.dir)
	}
}
