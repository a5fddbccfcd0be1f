package development

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
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
	page   = "docs/development.md"
	module = "github.com/rratelimiter/rratelimiter"
)

// between returns what stands in a text of the page between two others.
func between(t *testing.T, text, begin, end string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, begin)
	require.True(t, found, "%s has no %q", page, begin)
	rest, _, _ = strings.Cut(rest, end)
	return rest
}

func section(t *testing.T, heading string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	require.NoError(t, err)
	return between(t, string(text), "\n## "+heading+"\n", "\n## ")
}

var quoted = regexp.MustCompile("`[^`]+`")

func words(text string) []string {
	all := quoted.FindAllString(text, -1)
	for i, word := range all {
		all[i] = strings.Trim(word, "`")
	}
	return all
}

// rows returns the cells of the tables of a section, without the tables' heads.
func rows(text string) [][]string {
	var all [][]string
	inTable := false
	for line := range strings.Lines(text) {
		switch {
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case strings.HasPrefix(line, "|--"):
			inTable = true
		case inTable:
			all = append(all, strings.Split(strings.Trim(strings.TrimSpace(line), "| "), " | "))
		}
	}
	return all
}

// pkg is a folder with Go files.
type pkg struct {
	imports map[string]string // packages of this project, and where they are imported; not by tests
	tests   bool              // it has tests only
	doc     string            // the first sentence of its comment
}

// packages returns those of all modules of the project by their folders, the root's
// being ".". It reads the files itself rather than ask the go command, whose answers
// the cache of test results would know nothing of.
func packages(t *testing.T) map[string]pkg {
	t.Helper()
	all := map[string]pkg{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata") {
			return filepath.SkipDir
		}
		found, err := build.ImportDir(path, 0)
		if _, none := errors.AsType[*build.NoGoError](err); none {
			return nil
		}
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		p := pkg{imports: map[string]string{}, tests: len(found.GoFiles) == 0, doc: found.Doc}
		for _, imported := range found.Imports {
			if imported != module && !strings.HasPrefix(imported, module+"/") {
				continue
			}
			at := found.ImportPos[imported][0]
			of, err := filepath.Rel(module, imported)
			if err != nil {
				return err
			}
			p.imports[of] = fmt.Sprintf("%s:%d", filepath.Join(folder, filepath.Base(at.Filename)), at.Line)
		}
		all[filepath.ToSlash(folder)] = p
		return nil
	})
	require.NoError(t, err)
	return all
}

// drawn is what the page's drawing says.
type drawn struct {
	arrows map[string][]string // by folders; a package without arrows has none
	text   string              // beside the drawing
}

func readDrawing(t *testing.T, all map[string]pkg) drawn {
	t.Helper()
	text := section(t, "The packages")
	_, rest, _ := strings.Cut(text, "```text\n")
	picture, text, found := strings.Cut(rest, "```\n")
	require.True(t, found, "%s has no drawing", page)
	// A name without a path is a package in a folder "internal".
	folders := map[string]string{filepath.Base(module): "."}
	for folder := range all {
		if parent, name := filepath.Split(folder); filepath.Base(parent) == "internal" {
			folders[name] = folder
		} else if folder != "." {
			folders[folder] = folder
		}
	}
	d := drawn{arrows: map[string][]string{}, text: text}
	plan := drawingOf(picture)
	for _, name := range plan.names() {
		if assert.Contains(t, folders, name, "%s draws a package that there is not", page) {
			d.arrows[folders[name]] = nil
		}
	}
	arrows, err := plan.arrows()
	require.NoError(t, err, "the drawing of %s", page)
	for _, a := range arrows {
		from := folders[a.from]
		d.arrows[from] = append(d.arrows[from], folders[a.to])
	}
	return d
}

// reached returns the packages to which arrows lead from one.
func (d drawn) reached(from string) []string {
	all := slices.Clone(d.arrows[from])
	for i := 0; i < len(all); i++ {
		for _, next := range d.arrows[all[i]] {
			if !slices.Contains(all, next) {
				all = append(all, next)
			}
		}
	}
	return all
}

// below reports whether a folder is one of those, or in it.
func below(folder string, parents []string) bool {
	return slices.ContainsFunc(parents, func(parent string) bool {
		return strings.HasPrefix(folder+"/", strings.TrimSuffix(parent, "/")+"/")
	})
}

// title is what messages call the package of a folder.
func title(folder string) string {
	if folder == "." {
		return "the root"
	}
	return folder
}

func TestTheDrawingIsTheCode(t *testing.T) {
	t.Parallel()
	all := packages(t)
	d := readDrawing(t, all)
	anywhere := words(between(t, d.text, "\nAny package may import", "\n\n"))
	apart := words(between(t, d.text, "\nNot drawn:", "\n\n"))
	for _, folder := range slices.Sorted(maps.Keys(all)) {
		to, isDrawn := d.arrows[folder]
		if !isDrawn {
			assert.True(t, all[folder].tests || below(folder, apart), "the drawing of %s lacks %s", page, folder)
			continue
		}
		assert.False(t, below(folder, apart), "%s draws %s and says that it is not drawn", page, folder)
		for _, imported := range to {
			assert.Contains(t, all[folder].imports, imported,
				"%s draws an arrow from %s to %s, which it does not import", page, title(folder), title(imported))
		}
		allowed := append(d.reached(folder), anywhere...)
		for imported, where := range all[folder].imports {
			assert.True(t, slices.Contains(allowed, imported),
				"%s: %s imports %s, to which no arrow of %s leads", where, title(folder), title(imported), page)
		}
	}
	for _, folder := range anywhere {
		assert.Empty(t, all[folder].imports, "%s says that any package may import %s", page, folder)
	}
}

func TestTheTableOfFolders(t *testing.T) {
	t.Parallel()
	all := packages(t)
	d := readDrawing(t, all)
	var folders []string
	for _, row := range rows(d.text) {
		for _, path := range words(row[0]) {
			found, err := filepath.Glob(filepath.Join(root, path))
			require.NoError(t, err)
			assert.NotEmpty(t, found, "%s names %s, which does not exist", page, path)
			folders = append(folders, strings.TrimSuffix(path, "/"))
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(all)) {
		assert.True(t, folder == "." || below(folder, folders), "the table of folders of %s lacks %s", page, folder)
		assert.True(t, all[folder].tests || all[folder].doc != "", "%s has no comment that says what the package is for", title(folder))
	}
}

// declared returns the names of what a Go file declares, methods as Type.Method,
// or of the functions of a Lua file.
func declared(t *testing.T, path string) []string {
	t.Helper()
	var names []string
	if filepath.Ext(path) == ".lua" {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, match := range regexp.MustCompile(`(?m)^local function (\w+)`).FindAllStringSubmatch(string(text), -1) {
			names = append(names, match[1])
		}
		return names
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.FuncDecl:
			name := node.Name.Name
			if node.Recv != nil {
				name = strings.TrimPrefix(types.ExprString(node.Recv.List[0].Type), "*") + "." + name
			}
			names = append(names, name)
			return false
		case *ast.TypeSpec:
			names = append(names, node.Name.Name)
		case *ast.ValueSpec:
			for _, name := range node.Names {
				names = append(names, name.Name)
			}
		}
		return true
	})
	return names
}

// Of each rule the page names files, each before what of it holds the rule.
func TestRulesAreWhereThePageSays(t *testing.T) {
	t.Parallel()
	all := rows(section(t, "Where is the rule?"))
	assert.GreaterOrEqual(t, len(all), 20)
	for _, row := range all {
		path := ""
		var names []string
		for _, word := range words(row[1]) {
			if strings.Contains(word, "/") {
				path, names = filepath.Join(root, word), nil
				_, err := os.Stat(path)
				require.NoError(t, err, "%s, in the row %q", page, row[0])
				continue
			}
			require.NotEmpty(t, path, "%s, in the row %q: %s stands before its file", page, row[0], word)
			if names == nil {
				names = declared(t, path)
			}
			assert.True(t, slices.Contains(names, word), "%s, in the row %q: %s declares no %s", page, row[0], path, word)
		}
		assert.NotEmpty(t, path, "%s names no file in the row %q", page, row[0])
	}
}
