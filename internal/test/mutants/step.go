package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"sync"
	"time"
)

// A step is some of a suite's tests: those that compute long are apart, for later.
type step struct {
	suite *suite
	long  bool
}

const isLong = 300 * time.Millisecond

func (st step) String() string {
	if st.long {
		return st.suite.path + " (long)"
	}
	return st.suite.path
}

// key names the step in the records: tests that have changed are run again.
func (st step) key() string { return fmt.Sprintf("%s-%t", st.suite.hash, st.long) }

// testsOf returns the step's tests that come by a mutant.
func (st step) testsOf(m mutant) (names []string) {
	for name, t := range st.suite.tests {
		_, reached := slices.BinarySearch(t.Reached, m.number)
		if !t.Failed && st.long == (t.Busy > isLong) && (reached || m.file != "") {
			names = append(names, name)
		}
	}
	return names
}

// ask runs a step's tests for each mutant of this part that is still there.
func (r *run) ask(st step) {
	began, asked, killed := time.Now(), 0, 0
	left := slices.DeleteFunc(slices.Clone(r.mutants), func(m mutant) bool {
		return !r.mine(m) || r.records.killer(m) != "" || r.records.passed(m, st) || len(st.testsOf(m)) == 0
	})
	var lock sync.Mutex
	each(r.jobs, len(left), func(i int) {
		if time.Now().After(r.until) {
			return
		}
		lock.Lock()
		first, others := st.inOrder(left[i])
		lock.Unlock()
		by, err := r.kills(st, left[i], first)
		if by == "" && err == nil && len(others) > 0 {
			by, err = r.kills(st, left[i], others)
		}
		lock.Lock()
		defer lock.Unlock()
		if err != nil {
			fmt.Println(left[i], err)
			return
		}
		asked++
		if by != "" {
			killed++
		}
		if t := st.suite.tests[by]; t != nil {
			t.kills++
		}
		r.records.add(left[i], st, by)
	})
	if len(left) > 0 {
		took := time.Since(began).Round(time.Second)
		fmt.Printf("%s: %d of %d mutants asked for in %v, %d killed\n", st, asked, len(left), took, killed)
	}
}

// inOrder returns the tests of a mutant: first some that take little time and have killed many before.
func (st step) inOrder(m mutant) (first, others []string) {
	const scouts = 3
	names, worth := st.testsOf(m), map[string]float64{}
	for _, name := range names {
		t := st.suite.tests[name]
		worth[name] = float64(1+t.kills) / (t.Busy + t.Took/16).Seconds()
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(worth[b], worth[a]), cmp.Compare(a, b))
	})
	n := min(scouts, len(names))
	return names[:n], names[n:]
}

var failure = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// kills reports which of the tests is the first to notice a mutant, or how they end.
func (r *run) kills(st step, m mutant, names []string) (by string, err error) {
	limit := 10 * time.Second
	for _, name := range names {
		limit += 3 * st.suite.tests[name].Took
	}
	env, err := m.env(r.dir)
	if err != nil {
		return "", err
	}
	said, _, err := st.suite.run(names, limit, env)
	failed := failure.FindSubmatch(said)
	switch {
	case err == nil:
		return "", nil
	case bytes.Contains(said, []byte("panic: test timed out")) || errors.Is(err, exec.ErrWaitDelay):
		return "hangs", nil
	case failed != nil:
		return string(failed[1]), nil
	case bytes.Contains(said, []byte("panic: ")) || bytes.Contains(said, []byte("fatal error: ")):
		return "panics", nil
	}
	return "fails", nil
}
