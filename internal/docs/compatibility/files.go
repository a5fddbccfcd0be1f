package main

import (
	"encoding/csv"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// operationRows has each release's comparisons, by operation.
func (r *results) operationRows() [][]string {
	head := []string{"Redisson"}
	for _, op := range operations {
		head = append(head, op.name)
	}
	rows := [][]string{head}
	for _, release := range slices.SortedFunc(maps.Keys(r.turns), byRelease) {
		cells := []string{release}
		for _, op := range operations {
			cells = append(cells, cellOf(r.turns[release], op.recorded))
		}
		rows = append(rows, cells)
	}
	return rows
}

// topologyRows has how many operations were compared of each release through each topology.
func (r *results) topologyRows() [][]string {
	topologies := slices.Sorted(maps.Keys(r.topologies))
	rows := [][]string{append([]string{"Redisson"}, topologies...)}
	for _, release := range slices.SortedFunc(maps.Keys(r.turns), byRelease) {
		row := []string{release}
		for _, topology := range topologies {
			row = append(row, fmt.Sprint(r.topologies[topology][release]))
		}
		rows = append(rows, row)
	}
	return rows
}

// files returns the tables that are files of their own, by their names; without those
// of which nothing was recorded.
func (r *results) files() map[string]string {
	files := map[string]string{}
	for name, rows := range map[string][][]string{
		"operations": r.operationRows(), "topologies": r.topologyRows(), "versions": r.versionRows(), "fleets": r.fleetRows(), "breaks": r.breakRows(), "rows": r.rowRows(),
		"behind": append([][]string{hammerColumns}, hammerRows(r.behind)...), "failovers": r.failoverRows(),
	} {
		if len(rows) > 1 {
			var b strings.Builder
			_ = csv.NewWriter(&b).WriteAll(rows) // a Builder takes everything
			files[name+".csv"] = b.String()
		}
	}
	return files
}

// versionRows has for each release both what was compared and who got how many.
func (r *results) versionRows() [][]string {
	slices.SortStableFunc(r.hammers, func(a, b hammer) int { return byRelease(a.releases, b.releases) })
	rows := map[string][]string{}
	for _, h := range hammerRows(r.hammers) {
		rows[h[0]] = append([]string{h[0], "-", "-"}, h[1:]...)
	}
	for release, turns := range r.turns {
		sum := total(turns)
		if rows[release] == nil {
			rows[release] = []string{release, "", "", "-", "-", "-", "-", "-"}
		}
		rows[release][1], rows[release][2] = fmt.Sprint(sum.compared), fmt.Sprint(sum.wrong)
	}
	sorted := [][]string{slices.Concat([]string{"Redisson", "operations", "wrong"}, hammerColumns[1:])}
	for _, release := range slices.SortedFunc(maps.Keys(rows), byRelease) {
		sorted = append(sorted, rows[release])
	}
	return sorted
}

func (r *results) fleetRows() [][]string {
	rows := [][]string{{"Redissons", "compared", "wrong", "of what the limit allows", "over the limit", "errors in Java"}}
	pairs := map[string]hammer{}
	for _, h := range r.fleets {
		pairs[h.releases] = h
	}
	names := slices.Collect(maps.Keys(r.fleetTurns))
	for name := range pairs {
		if _, ok := r.fleetTurns[name]; !ok {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, byRelease)
	for _, name := range names {
		turns := total(r.fleetTurns[name])
		h := pairs[name]
		rows = append(rows, []string{
			name, fmt.Sprint(turns.compared), fmt.Sprint(turns.wrong), h.percent + " %", fmt.Sprint(h.over), fmt.Sprint(h.errors),
		})
	}
	return rows
}

func (r *results) breakRows() [][]string {
	rows := [][]string{{"Redissons", "who asks", "Go", "answers"}}
	for _, b := range r.breaks {
		rows = append(rows, []string{b.releases, b.asks, b.what, strings.TrimSuffix(strings.TrimPrefix(b.answers, "map["), "]")})
	}
	return rows
}

func (r *results) failoverRows() [][]string {
	return append([][]string{{"scenario", "rate", "over-granted", "lost", "seconds until it worked again"}}, r.failovers...)
}

// rowRows has how many each release grants if Java took the permits, and if Go did.
func (r *results) rowRows() [][]string {
	slices.SortStableFunc(r.rows, func(a, b rows) int { return byRelease(a.release, b.release) })
	cells := [][]string{{"Redisson", "when", "requests for the nine", "granted, taken by Java", "granted, taken by Go"}}
	for _, row := range r.rows {
		if row.side != "Go" {
			continue
		}
		java := "?"
		for _, other := range r.rows {
			if other.side == "Java" && other.release == row.release && other.way == row.way && other.requests == row.requests {
				java = fmt.Sprint(other.granted)
			}
		}
		cells = append(cells, []string{row.release, row.way, row.requests, java, fmt.Sprint(row.granted)})
	}
	return cells
}
