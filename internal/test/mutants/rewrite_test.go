package main

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// within returns a function's line with its mutants, and these.
func within(t *testing.T, head, line string) (string, []string) {
	t.Helper()
	source := "package a\n\nfunc f" + head + " {\n" + line + "\n}\n"
	text, found := rewrite("a.go", []byte(source), 1)
	_, err := parser.ParseFile(token.NewFileSet(), "a.go", text, parser.SkipObjectResolution)
	require.NoError(t, err, "%s", text)
	var told []string
	for _, m := range found {
		told = append(told, m.String())
	}
	lines := strings.Split(string(text), "\n")
	require.Len(t, lines, 6, "the lines keep their numbers")
	return lines[3], told
}

func TestRewrite(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ head, line, want string }{
		{"()", "x = 1", "if !mutantOn(1) { x = 1 }"},
		{"()", "x := 1", "x := 1"},
		{"()", "_ = x", "_ = x"},
		{"()", "defer func() { n++ }()", "if !mutantOn(1) { defer func() { if !mutantOn(2) { n++ } }() }"},
		{"()", "panic(1)", "panic(1)"},
		{"()", "return", "if !mutantOn(1) { return }"},
		{"() error", "return f(1)", "if mutantOn(1) { return *new(error) }; return f(1)"},
		{"() error", "return nil", "return nil"},
		{"() (n, m []int, ok bool)", "return nil, a, true", "if mutantOn(1) { return *new([]int), *new([]int), !(true) }; return nil, a, true"},
		{"() (n int, ok bool)", "return g()", "if mutantOn(1) { return *new(int), *new(bool) }; return g()"},
		{"() bool", "return a == b", "if mutantOn(1) { return !(a == b) }; return a == b"},
		{"() bool", "return a && b || c", "return (mutantOn(2) || a) && (mutantOn(3) || b) || (!mutantOn(1) && c)"},
		{"()", "if a.b { }", "if (mutantOn(1) != (a.b)) { }"},
		{"()", "if a && !(b || c) { }", "if (mutantOn(1) || a) && (mutantOn(2) || !((!mutantOn(3) && b) || (!mutantOn(4) && c))) { }"},
		{"()", "for i < 3 { break }", "for !mutantOn(1) && (i < 3) { if !mutantOn(2) { break } }"},
		{"()", "for range 3 { }", "for range 3 { if mutantOn(1) { break };  }"},
		{"()", "switch { case a: case b && c: }", "switch { case (mutantOn(1) != (a)): case (mutantOn(2) || b) && (mutantOn(3) || c): }"},
		{"()", "switch a { case b: c <- 1; fallthrough; default: }", "switch a { case b: if !mutantOn(1) { c <- 1 }; fallthrough; default: }"},
		{"()", "select { case <-a: b() }", "select { case <-a: if !mutantOn(1) { b() } }"},
	} {
		got, _ := within(t, tt.head, tt.line)
		assert.Equal(t, tt.want, got)
	}
	_, told := within(t, "() bool", "if a && b { c() }; return true")
	assert.Equal(t, []string{"a.go:4: negate: return true", "a.go:4: drop: a", "a.go:4: drop: b", "a.go:4: remove: c()"}, told)
}

func TestLuaMutants(t *testing.T) {
	t.Parallel()
	source := "local a = 1\nif a then\n  a.b = f(\n    1)\nelseif a == 2 then return a end\nfor i = 1, 2 do g(i) end\na[1] = 2\nreturn a\n"
	var told, changed []string
	for _, m := range luaMutants("lua/a.lua", source, 7) {
		told = append(told, m.String())
		for i, line := range strings.Split(m.changed, "\n") {
			if line != strings.Split(source, "\n")[i] {
				changed = append(changed, line)
			}
		}
	}
	assert.Equal(t, []string{
		"lua/a.lua:2: negate: if a then", "lua/a.lua:5: negate: elseif a == 2 then return a end",
		"lua/a.lua:6: skip: for i = 1, 2 do g(i) end", "lua/a.lua:7: remove: a[1] = 2", "lua/a.lua:8: zero: return a",
	}, told)
	assert.Equal(t, []string{
		"if not (a) then", "elseif not (a == 2) then return a end", "for i = 1, 2 do if true then break end  g(i) end", "", "return nil",
	}, changed)
}
