// Command reliability writes the tables of docs/reliability.md from what the tests of
// tests/chaos recorded, and from docs/fuzzing.tsv:
//
//	go run ./internal/reliability results
//
// A table stands between a line "<!-- table NAME -->" and a line "<!-- end -->". One
// whose records are not in the directory stays as it is. Run it in the repository's root.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const page = "docs/reliability.md"

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: reliability DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "reliability:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	changed := string(text)
	for _, t := range tables {
		rows, err := readTable(t.file(dir))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if changed, err = replace(changed, t.name, t.write(rows)); err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
	}
	return os.WriteFile(page, []byte(changed), 0o644)
}

// readTable reads lines whose columns are parted by tabs.
func readTable(file string) ([][]string, error) {
	text, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for line := range strings.Lines(string(text)) {
		rows = append(rows, strings.Split(strings.TrimRight(line, "\n"), "\t"))
	}
	return rows, nil
}

// replace puts the table of that name between its marks.
func replace(text, name, table string) (string, error) {
	begin := fmt.Sprintf("<!-- table %s -->\n", name)
	before, rest, begins := strings.Cut(text, begin)
	_, after, ends := strings.Cut(rest, "<!-- end -->\n")
	if !begins || !ends {
		return "", fmt.Errorf("the marks around the table %s are missing", name)
	}
	return before + begin + table + "<!-- end -->\n" + after, nil
}
