package main

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/docs/page"
)

// A table is one of the page's, written from the records of one file.
type table struct {
	record string // the name of a record, without its end
	write  func(rows [][]string) string
}

var tables = map[string]table{
	"rounds":     {"chaos-rounds", rounds},
	"statements": {"statements", statements},
}

// files are tables of their own, by their paths.
var files = map[string]table{
	"docs/reliability/faults.csv":  {"chaos-faults", faults},
	"docs/reliability/calls.csv":   {"chaos-calls", calls},
	"docs/reliability/mutants.csv": {"chaos-mutants", mutants},
}

func (t table) file(dir string) string { return filepath.Join(dir, t.record+".tsv") }

// counts are sums of one column, by the text of two others.
type counts map[string]map[string]int64

func (c counts) add(row, column string, n int64) {
	if c[row] == nil {
		c[row] = map[string]int64{}
	}
	c[row][column] += n
}

// lines returns a row for each text, the greatest sum first, with a sum at its end.
func (c counts) lines(columns []string) [][]string {
	sum := func(row string) (all int64) {
		for _, n := range c[row] {
			all += n
		}
		return all
	}
	rows := slices.SortedFunc(maps.Keys(c), func(a, b string) int {
		return cmp.Or(cmp.Compare(sum(b), sum(a)), cmp.Compare(a, b))
	})
	total := counts{}
	var lines [][]string
	for _, row := range rows {
		line := []string{row}
		for _, column := range columns {
			line = append(line, number(c[row][column]))
			total.add("all", column, c[row][column])
		}
		lines = append(lines, append(line, number(sum(row))))
	}
	line, all := []string{"all"}, int64(0)
	for _, column := range columns {
		line = append(line, number(total["all"][column]))
		all += total["all"][column]
	}
	return append(lines, append(line, number(all)))
}

func (c counts) columns() []string {
	all := map[string]bool{}
	for _, row := range c {
		for column := range row {
			all[column] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// rounds: seed, number, servers, mood, calls, faults, violations.
func rounds(rows [][]string) string {
	c := counts{}
	for _, row := range rows {
		c.add(row[2], "rounds", 1)
		for i, column := range []string{"calls", "faults", "violations"} {
			c.add(row[2], column, count(row[4+i]))
		}
	}
	columns := []string{"rounds", "calls", "faults", "violations"}
	lines := c.lines(columns)
	for i := range lines {
		lines[i] = lines[i][:len(lines[i])-1] // a sum of unlike things
	}
	return markdown(append([]string{"servers"}, columns...), lines)
}

// faults: seed, number, servers, kind, count.
func faults(rows [][]string) string {
	c := counts{}
	for _, row := range rows {
		c.add(row[3], row[2], count(row[4]))
	}
	return c.csv("fault")
}

// calls: seed, number, servers, limiter, call, answer, count.
func calls(rows [][]string) string {
	c := counts{}
	for _, row := range rows {
		c.add(row[4], row[5], count(row[6]))
	}
	return c.csv("call")
}

func (c counts) csv(first string) string {
	return csvText(slices.Concat([]string{first}, c.columns(), []string{"all"}), c.lines(c.columns()))
}

// csvText returns a file of a head and rows, whose numbers lose their commas.
func csvText(head []string, rows [][]string) string {
	all := [][]string{head}
	for _, row := range rows {
		line := row[:1:1]
		for _, cell := range row[1:] {
			line = append(line, strings.ReplaceAll(cell, ",", ""))
		}
		all = append(all, line)
	}
	var b strings.Builder
	_ = csv.NewWriter(&b).WriteAll(all) // a Builder takes everything
	return b.String()
}

// mutants: name, seed, rounds, milliseconds, check.
func mutants(rows [][]string) string {
	var lines [][]string
	for _, row := range rows {
		lines = append(lines, []string{row[0], row[2], fmt.Sprintf("%.2f s", float64(count(row[3]))/1000), row[4]})
	}
	slices.SortFunc(lines, slices.Compare)
	return csvText([]string{"fault of ours", "rounds until it was found", "time", "by the check of"}, lines)
}

// statements: package, mutants, killed, survivors, those that no test comes by, those not asked for to the end.
func statements(rows [][]string) string {
	columns := []string{"changes", "noticed", "survive", "no test comes by", "not tried on all tests"}
	c := counts{}
	for _, row := range rows {
		for i, column := range columns {
			c.add(row[0], column, count(row[1+i]))
		}
	}
	lines := c.lines(columns)
	for i := range lines {
		lines[i] = lines[i][:len(lines[i])-1] // the changes twice
	}
	return markdown(append([]string{"package"}, columns...), lines)
}

func count(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// number writes a number with commas.
func number(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// markdown returns a table of figures.
func markdown(columns []string, rows [][]string) string { return page.Table(columns, rows, true) }
