// Command compatibility writes docs/compatibility.md, the tables beside it, and the
// short form that docs/reference.md shows, from what the tests of make test-matrix recorded:
//
//	go run ./internal/docs/compatibility results
//
// Tables whose records are not in the directory are left out. Run it in the
// repository's root.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	document   = "docs/compatibility.md"
	folder     = "docs/compatibility"
	reference  = "docs/reference.md"
	shortBegin = "<!-- written by go run ./internal/docs/compatibility -->\n"
	shortEnd   = "<!-- until here -->\n"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: compatibility DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "compatibility:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	r, err := readResults(dir)
	if err != nil {
		return err
	}
	if err := os.WriteFile(document, []byte(r.page()), 0o644); err != nil {
		return err
	}
	for name, text := range r.files() {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(reference)
	if err != nil {
		return err
	}
	changed, err := replaceShort(string(text), r.short())
	if err != nil {
		return fmt.Errorf("%s: %w", reference, err)
	}
	return os.WriteFile(reference, []byte(changed), 0o644)
}

// replaceShort puts the short form between the two marks.
func replaceShort(text, short string) (string, error) {
	before, rest, begins := strings.Cut(text, shortBegin)
	_, after, ends := strings.Cut(rest, shortEnd)
	if !begins || !ends {
		return "", errors.New("the marks around the table are missing")
	}
	return before + shortBegin + short + shortEnd + after, nil
}
