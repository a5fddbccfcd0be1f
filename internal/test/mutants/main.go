// Command mutants changes each statement and each condition of some packages, one at a time, and says which changes no test notices:
//
//	go run ./internal/test/mutants -tests "./internal/lane ./tests/waiting" ./internal/lane
//
// All changes of Go code are in one build of the tests, and an environment variable says which is active. Before, each test
// shows by itself which it comes by. Then the suites are asked one after another, each for all changes that those before it
// have not noticed. Records in a directory let the next run go on from where this one ended; they begin anew if the packages
// have changed, and what a suite has said is forgotten if its tests have. Run it in the repository's root.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
	r.survey(*dir, flag.Args(), strings.Fields(*tests))
}

// check ends the program if there is an error.
func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// mine reports whether this run asks for a mutant.
func (r *run) mine(m mutant) bool {
	return m.number%r.parts == r.part-1 && strings.HasPrefix(m.where, r.only)
}

func (r *run) survey(dir string, packages, tests []string) {
	r.dir = must(filepath.Abs(filepath.Join(dir, "build"))) // tests run in their own folders
	check(os.MkdirAll(r.dir, 0o755))
	r.change(packages)
	fmt.Printf("%d mutants\n", len(r.mutants))
	text := fmt.Sprintf("%x", sha256.Sum256(r.text.Bytes()))[:12]
	r.records.open(filepath.Join(dir, text+".tsv"))
	for _, path := range tests {
		if r.partly = time.Now().After(r.until); r.partly {
			break
		}
		s := r.build(path)
		r.measure(s)
		r.suites = append(r.suites, s)
		r.ask(s)
	}
	r.report(filepath.Join(dir, "results"))
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

// A suite is a package's tests with all mutants in what they import.
type suite struct {
	path   string // from the root, as it was asked for
	dir    string // where its tests run
	binary string
	hash   string // of the binary
	tests  map[string]*test
}

// A test is one of a suite's, by itself and without an active mutant.
type test struct {
	Took    time.Duration
	Busy    time.Duration // of which the processor was busy, however many other programs run
	Failed  bool
	Reached []int // the mutants of Go code that it comes by
	kills   int
}

// measure finds out what each test of a suite reaches, unless that is known of the same binary.
func (r *run) measure(s *suite) {
	record := filepath.Join(r.dir, "reach", s.hash+".json")
	if text, err := os.ReadFile(record); err == nil {
		check(json.Unmarshal(text, &s.tests))
		return
	}
	names := strings.Fields(string(must(exec.Command(s.binary, "-test.list", "^(Test|Fuzz|Example)").Output())))
	found := make([]*test, len(names))
	each(r.jobs, len(names), func(i int) { found[i] = r.measureTest(s, names[i]) })
	s.tests = map[string]*test{}
	for i, name := range names {
		s.tests[name] = found[i]
		if found[i].Failed {
			fmt.Printf("%s: %s fails without a mutant, and is left out\n", s.path, name)
		}
	}
	write(record, must(json.Marshal(s.tests)))
}

func (r *run) measureTest(s *suite, name string) *test {
	reached := must(os.CreateTemp(r.dir, "reached"))
	defer func() { _ = os.Remove(reached.Name()) }()
	defer func() { _ = reached.Close() }()
	began := time.Now()
	_, busy, err := s.run([]string{name}, 2*time.Minute, "MUTANTS_REACHED="+reached.Name())
	t := &test{Took: time.Since(began), Busy: busy, Failed: err != nil}
	for lines := bufio.NewScanner(reached); lines.Scan(); {
		if n, err := strconv.Atoi(lines.Text()); err == nil {
			t.Reached = append(t.Reached, n)
		}
	}
	slices.Sort(t.Reached)
	t.Reached = slices.Compact(t.Reached) // a test may start processes
	return t
}

// run runs tests, until the first that fails, and ends them after so long.
func (s *suite) run(names []string, limit time.Duration, env ...string) (said []byte, busy time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.binary, "-test.short", "-test.failfast", "-test.parallel=8",
		"-test.timeout="+limit.String(), "-test.run=^("+strings.Join(names, "|")+")$")
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = time.Second
	said, err = cmd.CombinedOutput()
	if state := cmd.ProcessState; state != nil {
		busy = state.UserTime() + state.SystemTime()
	}
	return said, busy, err
}

// testsOf returns the tests that come by a mutant.
func (s *suite) testsOf(m mutant) (names []string) {
	for name, t := range s.tests {
		_, reached := slices.BinarySearch(t.Reached, m.number)
		if !t.Failed && (reached || m.file != "") {
			names = append(names, name)
		}
	}
	return names
}

// ask runs a suite's tests for each mutant of this part that is still there.
func (r *run) ask(s *suite) {
	began, asked, noticed := time.Now(), 0, 0
	left := slices.DeleteFunc(slices.Clone(r.mutants), func(m mutant) bool {
		_, known := r.records.of(m, s)
		return known || !r.mine(m) || r.fate(m) == killed || len(s.testsOf(m)) == 0
	})
	var lock sync.Mutex
	each(r.jobs, len(left), func(i int) {
		if time.Now().After(r.until) {
			return
		}
		lock.Lock()
		first, others := s.inOrder(left[i])
		lock.Unlock()
		by, err := r.kills(s, left[i], first)
		if by == "" && err == nil && len(others) > 0 {
			by, err = r.kills(s, left[i], others)
		}
		lock.Lock()
		defer lock.Unlock()
		if err != nil {
			fmt.Println(left[i], err)
			return
		}
		asked++
		if by != "" {
			noticed++
		}
		if t := s.tests[by]; t != nil {
			t.kills++
		}
		r.records.add(left[i], s, by)
	})
	if len(left) > 0 {
		took := time.Since(began).Round(time.Second)
		fmt.Printf("%s: %d of %d mutants asked for in %v, %d killed\n", s.path, asked, len(left), took, noticed)
	}
}

// inOrder returns the tests of a mutant: first some that take little time and have killed many before.
func (s *suite) inOrder(m mutant) (first, others []string) {
	const scouts = 3
	names, worth := s.testsOf(m), map[string]float64{}
	for _, name := range names {
		t := s.tests[name]
		worth[name] = float64(1+t.kills) / (t.Busy + t.Took/16).Seconds()
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(worth[b], worth[a]), cmp.Compare(a, b)) })
	n := min(scouts, len(names))
	return names[:n], names[n:]
}

var failure = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// kills reports which of the tests is the first to notice a mutant, or how they end.
func (r *run) kills(s *suite, m mutant, names []string) (by string, err error) {
	limit := 10 * time.Second
	for _, name := range names {
		limit += 3 * s.tests[name].Took
	}
	said, _, err := s.run(names, limit, m.env(r.dir))
	failed, exit := failure.FindSubmatch(said), (*exec.ExitError)(nil)
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay): // what they have started may hold their output
		return "", nil
	case bytes.Contains(said, []byte("panic: test timed out")):
		return "hangs", nil
	case failed != nil:
		return string(failed[1]), nil
	case bytes.Contains(said, []byte("panic: ")) || bytes.Contains(said, []byte("fatal error: ")):
		return "panics", nil
	case errors.As(err, &exit) && exit.Exited():
		return "fails", nil
	}
	return "", err // they did not start, or were killed
}
