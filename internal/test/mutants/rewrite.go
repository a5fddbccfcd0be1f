package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/gopher-lua/parse"
)

// A mutant is one change of one statement.
type mutant struct {
	number int    // selects it; from 1 on, over all packages
	where  string // file:line
	kind   string // what becomes of the text
	text   string // the first line of what it changes

	file    string // of Lua, and its text when the mutant is active
	changed string
}

// folder returns the package that a mutant is counted for.
func (m mutant) folder() string {
	if m.file != "" {
		return "lua"
	}
	return filepath.Dir(m.where)
}

func (m mutant) String() string { return fmt.Sprintf("%s: %s: %s", m.where, m.kind, m.text) }

const (
	remove = "remove" // a statement that declares nothing
	negate = "negate" // a condition without && and ||, or a result that is a bool
	drop   = "drop"   // an operand of && or ||
	skip   = "skip"   // a loop
	zero   = "zero"   // the results of a function
)

// rewrite returns the text of a Go file with all its mutants, each of which mutantOn turns on. Lines keep their numbers.
func rewrite(name string, source []byte, next int) (text []byte, found []mutant) {
	fset := token.NewFileSet()
	file := must(parser.ParseFile(fset, name, source, parser.SkipObjectResolution))
	r := &rewriter{name: name, source: source, fset: fset, next: next}
	var above []ast.Node
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil {
			above = above[:len(above)-1]
			return true
		}
		r.node(n, above)
		above = append(above, n)
		return true
	})
	return r.edited(), r.found
}

type rewriter struct {
	name   string
	source []byte
	fset   *token.FileSet
	next   int // the next mutant's number
	found  []mutant
	edits  []edit
}

// An edit puts text before an offset. What ends there comes before what begins there, and the inner within the outer.
type edit struct {
	at     int
	opens  bool
	number int
	text   string
}

// order is negative for what ends at its offset.
func (e edit) order() int {
	if e.opens {
		return e.number
	}
	return -e.number
}

func (r *rewriter) edited() []byte {
	slices.SortFunc(r.edits, func(a, b edit) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.order(), b.order())) })
	var out []byte
	from := 0
	for _, e := range r.edits {
		out = append(append(out, r.source[from:e.at]...), e.text...)
		from = e.at
	}
	return append(out, r.source[from:]...)
}

func (r *rewriter) offset(p token.Pos) int { return r.fset.Position(p).Offset }

func (r *rewriter) sourceOf(n ast.Node) string {
	return string(r.source[r.offset(n.Pos()):r.offset(n.End())])
}

// add notes a mutant of n, around which it puts before and after, in which # asks whether it is active.
func (r *rewriter) add(kind string, n ast.Node, before, after string) {
	r.note(kind, n, r.sourceOf(n))
	r.put(n.Pos(), true, before)
	r.put(n.End(), false, after)
	r.next++
}

func (r *rewriter) note(kind string, n ast.Node, text string) {
	text, _, _ = strings.Cut(text, "\n")
	where := fmt.Sprintf("%s:%d", r.name, r.fset.Position(n.Pos()).Line)
	r.found = append(r.found, mutant{number: r.next, where: where, kind: kind, text: strings.TrimSpace(text)})
}

func (r *rewriter) put(p token.Pos, opens bool, format string) {
	if format != "" {
		text := strings.ReplaceAll(format, "#", fmt.Sprintf("mutantOn(%d)", r.next))
		r.edits = append(r.edits, edit{r.offset(p), opens, r.next, text})
	}
}

// node adds the mutants of a node below others.
func (r *rewriter) node(n ast.Node, above []ast.Node) {
	switch n := n.(type) {
	case *ast.BlockStmt:
		r.statements(n.List, above)
	case *ast.CaseClause:
		if s, ok := above[len(above)-2].(*ast.SwitchStmt); ok && s.Tag == nil {
			for _, cond := range n.List {
				r.condition(cond)
			}
		}
		r.statements(n.Body, above)
	case *ast.CommClause:
		r.statements(n.Body, above)
	case *ast.IfStmt:
		r.condition(n.Cond)
	case *ast.ForStmt:
		if n.Cond != nil {
			r.add(skip, n.Cond, "!# && (", ")")
		}
	case *ast.RangeStmt:
		r.note(skip, n, string(r.source[r.offset(n.Pos()):r.offset(n.Body.Lbrace)]))
		r.put(n.Body.Lbrace+1, true, " if # { break }; ")
		r.next++
	case *ast.BinaryExpr:
		r.operands(n)
	}
}

func connects(e ast.Expr) bool {
	b, ok := ast.Unparen(e).(*ast.BinaryExpr)
	return ok && (b.Op == token.LAND || b.Op == token.LOR)
}

// operands adds a mutant for each operand of && and ||.
func (r *rewriter) operands(b *ast.BinaryExpr) {
	if !connects(b) {
		return
	}
	for _, operand := range []ast.Expr{b.X, b.Y} {
		switch {
		case connects(operand): // its own operands are dropped
		case b.Op == token.LAND:
			r.add(drop, operand, "(# || ", ")")
		default:
			r.add(drop, operand, "(!# && ", ")")
		}
	}
}

func (r *rewriter) condition(cond ast.Expr) {
	if !connects(cond) {
		r.add(negate, cond, "(# != (", "))")
	}
}

func (r *rewriter) statements(list []ast.Stmt, above []ast.Node) {
	for _, s := range list {
		if result, ok := s.(*ast.ReturnStmt); ok {
			r.results(result, resultsOf(above))
		} else if removable(s) {
			r.add(remove, s, "if !# { ", " }")
		}
	}
}

func removable(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		if !ok {
			return true
		}
		name, ok := call.Fun.(*ast.Ident)
		return !ok || name.Name != "panic" // a function may end with it
	case *ast.AssignStmt:
		return s.Tok != token.DEFINE && slices.ContainsFunc(s.Lhs, func(e ast.Expr) bool {
			name, ok := e.(*ast.Ident)
			return !ok || name.Name != "_"
		})
	case *ast.IncDecStmt, *ast.SendStmt, *ast.GoStmt, *ast.DeferStmt:
		return true
	case *ast.BranchStmt:
		return s.Tok == token.BREAK || s.Tok == token.CONTINUE
	}
	return false
}

// resultsOf returns the types of what the innermost function returns.
func resultsOf(above []ast.Node) (types []ast.Expr) {
	for _, n := range slices.Backward(above) {
		var function *ast.FuncType
		switch n := n.(type) {
		case *ast.FuncDecl:
			function = n.Type
		case *ast.FuncLit:
			function = n.Type
		default:
			continue
		}
		if function.Results == nil {
			return nil
		}
		for _, field := range function.Results.List {
			for range max(1, len(field.Names)) {
				types = append(types, field.Type)
			}
		}
		return types
	}
	return nil
}

// results adds the mutant of a return: it returns nothing yet, or the zero values, or a bool's other value.
func (r *rewriter) results(s *ast.ReturnStmt, types []ast.Expr) {
	if len(types) == 0 {
		r.add(remove, s, "if !# { ", " }")
		return
	}
	if len(s.Results) == 0 || len(types) == 1 && connects(s.Results[0]) {
		return
	}
	kind, same := zero, true
	var values []string
	for i, t := range types {
		name, _ := t.(*ast.Ident)
		single := len(s.Results) == len(types)
		switch {
		case name != nil && name.Name == "bool" && single && !strings.Contains(r.sourceOf(s.Results[i]), "\n"):
			values = append(values, "!("+r.sourceOf(s.Results[i])+")")
			kind, same = negate, false
		default:
			values = append(values, "*new("+r.sourceOf(t)+")")
			same = same && single && isZero(s.Results[i])
		}
	}
	if !same {
		r.add(kind, s, "if # { return "+strings.Join(values, ", ")+" }; ", "")
	}
}

// isZero reports whether an expression is plainly a zero value.
func isZero(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "nil"
	case *ast.BasicLit:
		return e.Value == "0" || e.Value == `""`
	case *ast.CompositeLit:
		_, list := e.Type.(*ast.ArrayType)
		_, table := e.Type.(*ast.MapType)
		return len(e.Elts) == 0 && !list && !table
	}
	return false
}

type luaChange struct {
	kind    string
	like    *regexp.Regexp
	changed string
}

// luaChanges are what becomes of a line of Lua, by the first that it is like. The package of the scripts has the one changed
// file in place of its own: see scripts.go.txt. What tests come by is not known of scripts.
var luaChanges = []luaChange{
	{negate, regexp.MustCompile(`^(\s*(?:else)?if )(.*)( then\b.*)$`), "${1}not (${2})${3}"},
	{skip, regexp.MustCompile(`^(\s*while )(.*)( do\b.*)$`), "${1}false and (${2})${3}"},
	{skip, regexp.MustCompile(`^(\s*for .* do)\b(.*)$`), "${1} if true then break end ${2}"},
	{zero, regexp.MustCompile(`^(\s*)return\b.+$`), "${1}return nil"},
	{remove, regexp.MustCompile(`^\s*[\w.]+(?:\(.*\)|(?:[\[.,].*)? = .*)$`), ""}, // a call, or an assignment
}

// luaMutants returns the mutants of a script or a part of one.
func luaMutants(name, source string, next int) (found []mutant) {
	lines := strings.Split(source, "\n")
	for i, line := range lines {
		is := slices.IndexFunc(luaChanges, func(c luaChange) bool { return c.like.MatchString(line) })
		if is < 0 {
			continue
		}
		change := luaChanges[is]
		text := strings.Join(slices.Concat(lines[:i], []string{change.like.ReplaceAllString(line, change.changed)}, lines[i+1:]), "\n")
		if _, err := parse.Parse(strings.NewReader(text), name); err != nil {
			continue // it was the begin or the end of a longer one
		}
		found = append(found, mutant{
			number: next + len(found), kind: change.kind, where: fmt.Sprintf("%s:%d", name, i+1),
			text: strings.TrimSpace(line), file: name, changed: text,
		})
	}
	return found
}

// hasScripts returns the text of the Go file of scripts without the name by which they are read: see scripts.go.txt.
func hasScripts(text string) string {
	return strings.ReplaceAll(text, "var Files embed.FS", "var embedded embed.FS")
}

// env selects a mutant in a process.
func (m mutant) env(dir string) string {
	if m.file == "" {
		return fmt.Sprintf("MUTANT=%d", m.number)
	}
	script := filepath.Join(dir, "scripts", fmt.Sprintf("%d.lua", m.number))
	write(script, []byte(m.changed))
	return "MUTANT_SCRIPT=" + strings.TrimPrefix(m.file, "lua/") + "=" + script
}
