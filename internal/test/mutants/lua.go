package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/yuin/gopher-lua/parse"
)

// Lua is changed a line at a time, and the package of the scripts has the one changed file in place of its own: see
// scripts.go.txt. What tests come by is not known of scripts.
var (
	luaBranch = regexp.MustCompile(`^(\s*(?:else)?if )(.*)( then\b.*)$`)
	luaWhile  = regexp.MustCompile(`^(\s*while )(.*)( do\b.*)$`)
	luaFor    = regexp.MustCompile(`^(\s*for .* do)\b(.*)$`)
	luaReturn = regexp.MustCompile(`^(\s*)return\b.+$`)
	luaPlain  = regexp.MustCompile(`^\s*[\w.]+(?:\(.*\)|(?:[\[.,].*)? = .*)$`) // a call, or an assignment
)

// luaMutants returns the mutants of a script or a part of one.
func luaMutants(name, source string, next int) (found []mutant) {
	lines := strings.Split(source, "\n")
	for i, line := range lines {
		kind, changed := luaLine(line)
		if kind == "" {
			continue
		}
		text := strings.Join(append(append(append([]string{}, lines[:i]...), changed), lines[i+1:]...), "\n")
		if _, err := parse.Parse(strings.NewReader(text), name); err != nil {
			continue // it was the begin or the end of a longer one
		}
		found = append(found, mutant{
			number: next + len(found), kind: kind, where: fmt.Sprintf("%s:%d", name, i+1),
			text: strings.TrimSpace(line), file: name, changed: text,
		})
	}
	return found
}

// luaLine returns what becomes of a line, and which kind of change that is, or none.
func luaLine(line string) (kind, changed string) {
	if m := luaBranch.FindStringSubmatch(line); m != nil {
		return negate, m[1] + "not (" + m[2] + ")" + m[3]
	}
	if m := luaWhile.FindStringSubmatch(line); m != nil {
		return skip, m[1] + "false and (" + m[2] + ")" + m[3]
	}
	if m := luaFor.FindStringSubmatch(line); m != nil {
		return skip, m[1] + " if true then break end " + m[2]
	}
	if m := luaReturn.FindStringSubmatch(line); m != nil {
		return zero, m[1] + "return nil"
	}
	if luaPlain.MatchString(line) {
		return remove, ""
	}
	return "", ""
}

// hasScripts returns the text of the Go file of scripts without the name by which they are read: see scripts.go.txt.
func hasScripts(text string) string {
	return strings.ReplaceAll(text, "var Files embed.FS", "var embedded embed.FS")
}

// env selects a mutant in a process.
func (m mutant) env(dir string) (string, error) {
	if m.file == "" {
		return fmt.Sprintf("MUTANT=%d", m.number), nil
	}
	script := filepath.Join(dir, "scripts", fmt.Sprintf("%d.lua", m.number))
	return "MUTANT_SCRIPT=" + strings.TrimPrefix(m.file, "lua/") + "=" + script, write(script, []byte(m.changed))
}
