// Command compatibility writes docs/compatibility.md and the tables beside it from what
// the tests of make test-matrix recorded:
//
//	go run ./internal/docs/compatibility results
//
// Tables whose records are not in the directory are left out. Run it in the
// repository's root.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

const (
	document = "docs/compatibility.md"
	folder   = "docs/compatibility"
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
	return nil
}
