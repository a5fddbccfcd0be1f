package english

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
