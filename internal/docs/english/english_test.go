// Package english holds the words of code and pages: phrases that they do without.
package english

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../../.."

// phrases have plainer words, behind them: those of all files, and those of pages and
// of code that is no test.
var phrases = map[string]string{
	"tells " + "whether": "reports whether",
	"in va" + "in":       "without success",
	"whom" + "ever":      "the one that",
	" le" + "st ":        "so that ... not",
}

var plainPhrases = map[*regexp.Regexp]string{
	regexp.MustCompile(`\b(is|are) told\b`): "receives, learns, gets",
	regexp.MustCompile(`\b[Ww]hoever\b`):    "a caller who, if someone",
}

// plainComments are those of comments, in tests too; texts and data may quote them.
var plainComments = regexp.MustCompile(`(?m)(//|--) .*\b(nobody|somebody|whoever|takes note of)\b`)

func TestWordsThatHavePlainerOnes(t *testing.T) {
	t.Parallel()
	files := 0
	err := eachFile([]string{".go", ".lua", ".md"}, func(path, text string) {
		files++
		text = strings.ToLower(text)
		for phrase, plainer := range phrases {
			assert.NotContains(t, text, phrase, "%s: write %q", path, plainer)
		}
		if filepath.Ext(path) != ".md" {
			assert.NotRegexp(t, plainComments, text, path)
		}
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		for phrase, plainer := range plainPhrases {
			assert.NotRegexp(t, phrase, text, "%s: write %q", path, plainer)
		}
	})
	require.NoError(t, err)
	assert.Greater(t, files, 300)
}

// maxComment is how many lines the comment of an exported declaration may have: what is
// longer belongs on a page, which the comment names.
const maxComment = 15

func TestDocCommentsAreShort(t *testing.T) {
	t.Parallel()
	checked := 0
	err := eachFile([]string{".go"}, func(path, text string) {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, text, parser.ParseComments)
		require.NoError(t, err)
		check := func(name *ast.Ident, doc *ast.CommentGroup) {
			if doc == nil || !name.IsExported() {
				return
			}
			checked++
			lines := files.Position(doc.End()).Line - files.Position(doc.Pos()).Line + 1
			assert.LessOrEqual(t, lines, maxComment, "%s: the comment of %s", path, name)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				check(d.Name, d.Doc)
			case *ast.GenDecl:
				ast.Inspect(d, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.TypeSpec:
						check(n.Name, d.Doc)
					case *ast.ValueSpec:
						check(n.Names[0], n.Doc)
					case *ast.Field:
						if len(n.Names) > 0 {
							check(n.Names[0], n.Doc)
						}
					}
					return true
				})
			}
		}
	})
	require.NoError(t, err)
	assert.Greater(t, checked, 500)
}

// mostWords is how many words all pages may have together, as wc -w counts them.
const mostWords = 42_000

func TestPagesAreShortEnough(t *testing.T) {
	t.Parallel()
	type page struct {
		path  string
		words int
	}
	var pages []page
	total := 0
	err := eachFile([]string{".md"}, func(path, text string) {
		words := len(strings.Fields(text))
		pages = append(pages, page{path, words})
		total += words
	})
	require.NoError(t, err)
	assert.Greater(t, len(pages), 40)

	slices.SortFunc(pages, func(a, b page) int { return b.words - a.words })
	var largest strings.Builder
	for _, p := range pages[:min(10, len(pages))] {
		fmt.Fprintf(&largest, "\n%6d %s", p.words, p.path)
	}
	assert.LessOrEqual(t, total, mostWords, "words of all pages; say each thing once, and link. The largest:%s", &largest)
}

// eachFile calls f with the path and the text of each file whose name ends so.
func eachFile(extensions []string, f func(path, text string)) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), ".") {
			return filepath.SkipDir
		}
		if entry.IsDir() || !slices.Contains(extensions, filepath.Ext(path)) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f(filepath.ToSlash(relative), string(text))
		return nil
	})
}
