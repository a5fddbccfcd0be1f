// Command mutants changes each statement and each condition of some packages, one at a time, and says which changes
// no test notices:
//
//	go run ./internal/test/mutants -tests "./internal/lane ./tests/waiting" ./internal/lane
//
// All changes of Go code are in one build of the tests, and an environment variable says which is active. Before, each
// test shows by itself which it comes by. Then the suites are asked one after another, each for all changes that those
// before it have not noticed, the short tests of all before the long ones. Records in a directory let the next run go
// on from where this one ended; they begin anew if the packages have changed, and tests that have changed are run again
// for what has survived. Run it in the repository's root.
package main

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// A run is one survey.
type run struct {
	dir         string
	jobs        int
	only        string
	part, parts int
	until       time.Time

	text    bytes.Buffer // of all packages, with the mutants
	mutants []mutant
	suites  []*suite
	partly  bool // some suites have not been built in time
	records records
}

func main() {
	dir := flag.String("dir", ".cache/mutants", "where the records are")
	part := flag.String("part", "1/1", "which part of the mutants: k/n")
	only := flag.String("only", "", "the mutants of this file or folder: internal/lane/work.go")
	lasts := flag.Duration("for", 24*time.Hour, "begin nothing after that time")
	jobs := flag.Int("j", 2, "how many tests run at a time")
	tests := flag.String("tests", "", "the packages whose tests are run, the quickest first, separated by spaces")
	flag.Parse()
	r := &run{jobs: *jobs, only: *only, until: time.Now().Add(*lasts)}
	_, err := fmt.Sscanf(*part, "%d/%d", &r.part, &r.parts)
	if err != nil || flag.NArg() == 0 || *tests == "" || r.part < 1 || r.part > r.parts {
		flag.Usage()
		os.Exit(2)
	}
	if err := r.survey(*dir, flag.Args(), strings.Fields(*tests)); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// mine reports whether this run asks for a mutant.
func (r *run) mine(m mutant) bool {
	return m.number%r.parts == r.part-1 && strings.HasPrefix(m.where, r.only)
}

func (r *run) survey(dir string, packages, tests []string) error {
	build, err := filepath.Abs(filepath.Join(dir, "build")) // tests run in their own folders
	if err != nil {
		return err
	}
	r.dir = build
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	if err := r.change(packages); err != nil {
		return err
	}
	fmt.Printf("%d mutants\n", len(r.mutants))
	text := fmt.Sprintf("%x", sha256.Sum256(r.text.Bytes()))[:12]
	if err := r.records.open(filepath.Join(dir, text+".tsv")); err != nil {
		return err
	}
	defer func() { _ = r.records.file.Close() }()
	for _, path := range tests {
		if r.partly = time.Now().After(r.until); r.partly {
			break
		}
		s, err := r.build(path)
		if err == nil {
			err = r.measure(s)
		}
		if err != nil {
			return err
		}
		r.suites = append(r.suites, s)
		r.ask(step{s, false})
	}
	for _, s := range r.suites {
		r.ask(step{s, true})
	}
	return r.report(filepath.Join(dir, "results"))
}

// each calls f with 0 to n-1, some at a time.
func each(atOnce, n int, f func(i int)) {
	var wg sync.WaitGroup
	places := make(chan struct{}, atOnce)
	for i := range n {
		places <- struct{}{}
		wg.Go(func() {
			f(i)
			<-places
		})
	}
	wg.Wait()
}
