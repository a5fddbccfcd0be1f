package main

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// records are what steps have said of mutants, a line each: the mutant's number, the step, what killed it or nothing.
type records struct {
	file *os.File
	by   map[string]string // of each mutant that was killed
	over map[string]bool   // mutants with steps that they have survived
}

func (rs *records) open(path string) error {
	rs.by, rs.over = map[string]string{}, map[string]bool{}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); len(fields) == 3 {
			rs.note(fields[0], fields[1], fields[2])
		}
	}
	rs.file, err = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return err
}

func (rs *records) note(mutant, step, by string) {
	if by != "" {
		rs.by[mutant] = by
	} else {
		rs.over[mutant+" "+step] = true
	}
}

func (rs *records) add(m mutant, st step, by string) {
	if by != "" {
		by = st.suite.path + " " + by
	}
	number := fmt.Sprint(m.number)
	rs.note(number, st.key(), by)
	fmt.Fprintf(rs.file, "%s\t%s\t%s\n", number, st.key(), by)
}

// killer returns what has killed a mutant, or nothing.
func (rs *records) killer(m mutant) string { return rs.by[fmt.Sprint(m.number)] }

func (rs *records) passed(m mutant, st step) bool { return rs.over[fmt.Sprint(m.number)+" "+st.key()] }

// What has become of mutants.
const (
	killed    = "killed"
	survives  = "survives"
	harmless  = "harmless"
	unreached = "no test comes by"
	unasked   = "not asked for to the end"
)

// report prints what has survived, and writes how many have to a file for docs/reliability.md.
func (r *run) report(dir string) error {
	all, excused := map[string]map[string]int{}, readHarmless(harmlessText)
	for _, m := range r.mutants {
		of, fate := m.folder(), r.fate(m)
		if all[of] == nil {
			all[of] = map[string]int{}
		}
		if fate == survives && excused[m.key()] {
			fate = harmless
		}
		all[of][fate]++
		if r.mine(m) && (fate == survives || fate == unreached) {
			fmt.Printf("%s: %v\n", fate, m)
		}
		delete(excused, m.key())
	}
	var text strings.Builder
	for _, of := range slices.Sorted(maps.Keys(all)) {
		sum, line := 0, ""
		for _, fate := range []string{killed, harmless, survives, unreached, unasked} {
			sum += all[of][fate]
			line += fmt.Sprintf("\t%d", all[of][fate])
		}
		fmt.Fprintf(&text, "%s\t%d%s\n", of, sum, line)
		fmt.Printf("%s: %d mutants: %v\n", of, sum, all[of])
	}
	for key := range excused {
		if file, _, _ := strings.Cut(key, ":"); all[path.Dir(file)] != nil {
			fmt.Println("harmless.txt names what is gone:", key)
		}
	}
	return write(filepath.Join(dir, "statements.tsv"), []byte(text.String()))
}

//go:embed harmless.txt
var harmlessText string

// key names a mutant whatever line it is in.
func (m mutant) key() string {
	file, _, _ := strings.Cut(m.where, ":")
	return fmt.Sprintf("%s: %s: %s: %s", file, m.in, m.kind, m.text)
}

// readHarmless returns the keys of mutants that no test can or need notice. Lines with # say why.
func readHarmless(text string) map[string]bool {
	keys := map[string]bool{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			keys[line] = true
		}
	}
	return keys
}

// fate returns what has become of a mutant: if a step is left that may kill it, it was not asked for to the end.
func (r *run) fate(m mutant) string {
	fate := unreached
	if r.partly {
		fate = unasked
	}
	for _, s := range r.suites {
		for _, long := range []bool{false, true} {
			switch st := (step{s, long}); {
			case len(st.testsOf(m)) == 0:
			case !r.records.passed(m, st):
				fate = unasked
			case fate == unreached:
				fate = survives
			}
		}
	}
	if r.records.killer(m) != "" {
		return killed
	}
	return fate
}
