// Command reliability writes the tables of docs/reliability.md from what the tests of
// tests/chaos recorded:
//
//	go run ./internal/docs/reliability results
//
// Long tables are files of their own in docs/reliability. A table stands between a line "<!-- begin NAME -->" and a
// line "<!-- end -->". A table whose records are not in the directory stays unchanged. Run it in the repository's root.
package main

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/docs/page"
)

const path = "docs/reliability.md"

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
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := fill(string(old), dir)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	for name, t := range files {
		rows, err := page.Rows(t.file(dir))
		if err == nil && len(rows) > 0 {
			err = os.WriteFile(name, []byte(t.write(rows)), 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fill writes the tables of a page, which must have all of them.
func fill(text, dir string) (string, error) {
	missing := maps.Clone(tables)
	text, err := page.Fill(text, func(name, old string) (string, error) {
		t, known := tables[name]
		if !known {
			return "", fmt.Errorf("no table is called %q", name)
		}
		delete(missing, name)
		rows, err := page.Rows(t.file(dir))
		if err != nil || len(rows) == 0 {
			return old, err
		}
		return t.write(rows), nil
	})
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("the marks of tables are missing: %v", slices.Sorted(maps.Keys(missing)))
	}
	return text, err
}
