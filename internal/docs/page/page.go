// Package page puts records into Markdown pages, for the programs that write docs.
package page

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Fill replaces what stands between each "<!-- begin NAME -->" and the "<!-- end -->"
// behind it by what write returns; old is what stands there.
func Fill(text string, write func(name, old string) (string, error)) (string, error) {
	const begin, end = "<!-- begin ", "<!-- end -->"
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, begin)
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		name, rest, _ := strings.Cut(rest, " -->\n")
		old, after, closed := strings.Cut(rest, end)
		if !closed {
			return "", fmt.Errorf("table %q has no end", name)
		}
		table, err := write(name, old)
		if err != nil {
			return "", err
		}
		out.WriteString(begin + name + " -->\n" + table + end)
		text = after
	}
}

// Rows returns the lines of a file of columns with tabs between; none if there is no
// such file.
func Rows(path string) ([][]string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var rows [][]string
	for line := range strings.Lines(string(text)) {
		rows = append(rows, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	return rows, err
}

// Table returns a table; with figures all columns but the first are numbers.
func Table(columns []string, rows [][]string, figures bool) string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(columns)
	rule := "|---"
	if figures {
		rule = "|---:"
	}
	b.WriteString("|---" + strings.Repeat(rule, len(columns)-1) + "|\n")
	for _, cells := range rows {
		line(cells)
	}
	return b.String()
}
