package report

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// tables are what performance.md shows between its markers, by their names.
var tables = map[string]func(*Results) string{
	"figures":     figuresTable,
	"machine":     machineTable,
	"setup":       setupTable,
	"throughput":  func(r *Results) string { return r.both(Rate, Direct, r.thousands) },
	"network":     func(r *Results) string { return r.both(Rate, Delayed, r.thousands) },
	"latency":     func(r *Results) string { return r.both(Rate, Direct, r.latencies) },
	"far-latency": func(r *Results) string { return r.both(Rate, Delayed, r.latencies) },
	"server":      serverTable,
	"scripts":     func(r *Results) string { return r.both(ScriptCalls, Direct, r.plain) },
	"memory":      memoryTable,
	"steady":      steadyTable,
	"alone":       aloneTable,
	"allocations": allocationsTable,
	"stalls":      stallsTable,
	"crowds":      crowdsTable,
	"counts":      countsTable,
}

// Render puts the tables into performance.md of the folder, and the plots into
// the folder performance beside it.
func Render(r *Results, docs string) error {
	path := filepath.Join(docs, "performance.md")
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := fill(string(page), r)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	folder := filepath.Join(docs, "performance")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return plots(r, folder)
}

// fill replaces what stands between <!-- begin NAME --> and <!-- end -->.
func fill(page string, r *Results) (string, error) {
	const begin, end = "<!-- begin ", "<!-- end -->"
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(page, begin)
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		name, rest, _ := strings.Cut(rest, " -->")
		_, after, closed := strings.Cut(rest, end)
		table := tables[name]
		if table == nil || !closed {
			return "", fmt.Errorf("no table is called %q, or it has no end", name)
		}
		out.WriteString(begin + name + " -->\n" + table(r) + end)
		page = after
	}
}

// Text shows the tables that a short run is for.
func Text(w io.Writer, r *Results) error {
	for _, name := range []string{"machine", "figures", "throughput", "network", "server", "memory", "stalls", "crowds", "counts"} {
		if _, err := fmt.Fprintf(w, "\n## %s\n\n%s", name, tables[name](r)); err != nil {
			return err
		}
	}
	return nil
}
