package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

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
func (r *run) measure(s *suite) error {
	record := filepath.Join(r.dir, "reach", s.hash+".json")
	if text, err := os.ReadFile(record); err == nil {
		return json.Unmarshal(text, &s.tests)
	}
	out, err := exec.Command(s.binary, "-test.list", "^(Test|Fuzz|Example)").Output()
	if err != nil {
		return fmt.Errorf("the tests of %s: %w", s.path, err)
	}
	names := strings.Fields(string(out))
	found := make([]*test, len(names))
	problems := make([]error, len(names))
	each(r.jobs, len(names), func(i int) {
		found[i], problems[i] = r.measureTest(s, names[i])
	})
	if err := errors.Join(problems...); err != nil {
		return err
	}
	s.tests = map[string]*test{}
	for i, name := range names {
		s.tests[name] = found[i]
		if found[i].Failed {
			fmt.Printf("%s: %s fails without a mutant, and is left out\n", s.path, name)
		}
	}
	text, err := json.Marshal(s.tests)
	if err != nil {
		return err
	}
	return write(record, text)
}

func (r *run) measureTest(s *suite, name string) (*test, error) {
	reached, err := os.CreateTemp(r.dir, "reached")
	if err != nil {
		return nil, err
	}
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
	return t, nil
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
