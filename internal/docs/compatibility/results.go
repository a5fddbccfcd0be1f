package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/docs/page"
)

// results are what the tests recorded, a table a file: see record in
// compat_test, and scripts/matrix.sh.
type results struct {
	turns, fleetTurns map[string]map[string]count // by releases, by side and operation
	topologies        map[string]map[string]int   // operations by turns, by topology and release
	hammers, fleets   []hammer
	behind            []hammer
	rows              []rows
	breaks            []breaks
	servers           []cell
	failovers         [][]string
}

// count is how many operations were compared, and how many came out wrong.
type count struct{ compared, wrong int }

func (c count) add(other count) count {
	return count{c.compared + other.compared, c.wrong + other.wrong}
}

// hammer is one run of both sides against one limiter.
type hammer struct {
	releases         string
	goes, java       int
	errors, over     int
	percent, problem string
}

// rows is one case in which a release may count members instead of permits.
type rows struct {
	release, way, requests, side string
	granted, want                int
}

// breaks has the answers to two Redissons that can't share a limiter.
type breaks struct{ releases, asks, what, answers string }

// cell is one run of the behaviour suite on a server through a topology.
type cell struct {
	server, topology        string
	why                     string // why the server can't do it; "" if it can
	passed, failed, skipped int
	seconds                 int
}

func readResults(dir string) (*results, error) {
	r := &results{topologies: map[string]map[string]int{}}
	read := func(table string, columns int, take func(words []string, number func(int) int)) error {
		return readRows(filepath.Join(dir, table+".tsv"), columns, take)
	}
	turns := func(into *map[string]map[string]count) func(words []string, number func(int) int) {
		*into = map[string]map[string]count{}
		return func(words []string, number func(int) int) {
			of := (*into)[words[0]]
			if of == nil {
				of = map[string]count{}
				(*into)[words[0]] = of
			}
			of[words[1]] = of[words[1]].add(count{number(2), number(3)})
		}
	}
	hammers := func(into *[]hammer) func(words []string, number func(int) int) {
		return func(words []string, number func(int) int) {
			h := hammer{words[0], number(1), number(2), number(3), number(4), words[5], ""}
			if len(words) > 6 {
				h.problem = words[6]
			}
			*into = append(*into, h)
		}
	}
	all := turns(&r.turns)
	err := errors.Join(
		read("TestTurns", 5, func(words []string, number func(int) int) {
			all(words, number)
			if r.topologies[words[4]] == nil {
				r.topologies[words[4]] = map[string]int{}
			}
			r.topologies[words[4]][words[0]] += number(2)
		}),
		read("TestFleetTurns", 4, turns(&r.fleetTurns)),
		read("TestHammer", 6, hammers(&r.hammers)),
		read("TestFleetHammer", 6, hammers(&r.fleets)),
		read("TestHammerOfAClockBehind", 6, hammers(&r.behind)),
		read("TestRowsTakenForPermits", 6, func(words []string, number func(int) int) {
			r.rows = append(r.rows, rows{words[0], words[1], words[2], words[3], number(4), number(5)})
		}),
		read("TestFleetsThatBreak", 4, func(words []string, _ func(int) int) {
			r.breaks = append(r.breaks, breaks{words[0], words[1], words[2], words[3]})
		}),
		read("servers", 7, func(words []string, number func(int) int) {
			why, _ := strings.CutPrefix(words[2], "n/a: ")
			if why == words[2] {
				why = ""
			}
			r.servers = append(r.servers, cell{words[0], words[1], why, number(3), number(4), number(5), number(6)})
		}),
		read("failover", 5, func(words []string, _ func(int) int) { r.failovers = append(r.failovers, words) }),
	)
	return r, err
}

// readRows calls take with each line of a file, of that many columns at least.
func readRows(path string, columns int, take func(words []string, number func(int) int)) error {
	lines, err := page.Rows(path)
	for n, words := range lines {
		var failed error
		number := func(i int) int {
			value, err := strconv.Atoi(words[i])
			failed = errors.Join(failed, err)
			return value
		}
		if len(words) < columns {
			return fmt.Errorf("%s:%d: %d columns, not %d", filepath.Base(path), n+1, len(words), columns)
		}
		take(words, number)
		if failed != nil {
			return fmt.Errorf("%s:%d: %w", filepath.Base(path), n+1, failed)
		}
	}
	return err
}

// byRelease sorts releases, or pairs of them, oldest first, and unreleased ones last.
func byRelease(a, b string) int {
	a, b = unreleased.Replace(a), unreleased.Replace(b)
	return slices.CompareFunc(strings.FieldsFunc(a, notDigit), strings.FieldsFunc(b, notDigit), func(x, y string) int {
		m, _ := strconv.Atoi(x)
		n, _ := strconv.Atoi(y)
		return m - n
	})
}

var unreleased = strings.NewReplacer("after-next", "1001", "next", "1000")

func notDigit(r rune) bool { return r < '0' || r > '9' }
