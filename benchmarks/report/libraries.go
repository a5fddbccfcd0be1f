package report

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
)

// libraryRows compares the libraries in what users ask first, by medians, below a head.
func libraryRows(r *Results) [][]string {
	loads := r.loads(Rate, Direct, Granting)
	heads := []string{"thousand decisions a second"}
	for _, load := range loads {
		heads = append(heads, head(load))
	}
	rows := [][]string{append(heads, "bytes a limiter", "bytes a permit", "allocations", "most grants in an interval")}
	for _, name := range r.names() {
		cells := []string{name}
		for _, load := range loads {
			load.Metric, load.Peer, load.Network = Rate, name, Direct
			cells = append(cells, median(r.Of(load), 1000))
		}
		permit := median(r.Of(loadKey(BytesPermit, name, Granting, 256, 1)), 1)
		if kind, _ := peer.Find(name); permit != "" && !kind.Log {
			permit = "none kept"
		}
		rows = append(rows, append(cells,
			median(r.Of(loadKey(BytesLimiter, name, Refusing, 256, manyLimiters)), 1), permit,
			median(r.Of(loadKey(Allocations, name, Granting+", plain", 1, 1)), 1),
			median(r.Of(loadKey(Fullest, name, "crowds", 256, 1)), 1)))
	}
	return rows
}

func librariesTable(r *Results) string {
	rows := libraryRows(r)
	t := newTable(rows[0][0], rows[0][1:]...)
	for _, row := range rows[1:] {
		t.row(bold(row[0]), row[1:]...)
	}
	return t.text()
}

func librariesCSV(r *Results) string {
	rows := libraryRows(r)
	for _, row := range rows[1:] {
		for i := range row[1:] {
			row[i+1] = strings.ReplaceAll(row[i+1], ",", "")
		}
	}
	return csvText(rows)
}

// median is one over a unit, "" if there is none.
func median(s Summary, unit float64) string {
	if s.Rounds == 0 {
		return ""
	}
	return number(s.Median / unit)
}

// loadsCSV is the appendix: every load of every library, a line each.
func loadsCSV(r *Results) string {
	rows := [][]string{{
		"library", "callers", "limiters", "network", "answers", "decisions/s", "lowest", "highest",
		"p50 us", "p99 us", "server us", "server CPU us", "client CPU us",
	}}
	for _, k := range slices.SortedFunc(maps.Keys(r.Values), compare) {
		if k.Metric != Rate {
			continue
		}
		rate := r.Of(k)
		values := []float64{rate.Median, rate.Min, rate.Max}
		row := []string{k.Peer, strconv.Itoa(k.Callers), strconv.Itoa(k.Limiters), k.Network, k.Mode}
		for _, metric := range []string{P50, P99, ServerTime, ServerCPU, ClientCPU} {
			k.Metric = metric
			values = append(values, r.Of(k).Median)
		}
		for _, v := range values {
			row = append(row, strconv.FormatFloat(v, 'g', 4, 64))
		}
		rows = append(rows, row)
	}
	return csvText(rows)
}
