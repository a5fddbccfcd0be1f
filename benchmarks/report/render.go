package report

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/rratelimiter/rratelimiter/internal/docs/page"
)

// tables are what the pages show between their markers, by their names.
var tables = map[string]func(*Results) string{
	"figures":     figuresTable,
	"answers":     answersTable,
	"machine":     machineTable,
	"glance":      glanceTable,
	"options":     optionsTable,
	"cost":        costTable,
	"redis":       redisTable,
	"beside":      besideTable,
	"alone":       aloneTable,
	"turns":       turnsTable,
	"libraries":   librariesTable,
	"throughput":  func(r *Results) string { return r.both(Rate, r.thousands) },
	"network":     func(r *Results) string { return r.byLoad(Rate, Delayed, Granting, r.thousands) },
	"latency":     func(r *Results) string { return r.both(P50, r.medians(P50, P99)) },
	"far-latency": func(r *Results) string { return r.byLoad(P50, Delayed, Granting, r.medians(P50, P99)) },
	"server":      func(r *Results) string { return r.both(ServerTime, r.medians(ServerTime, ServerCPU)) },
	"client":      func(r *Results) string { return r.both(ClientCPU, r.plain) },
	"memory":      memoryTable,
	"allocations": allocationsTable,
	"stalls":      stallsTable,
	"crowds":      crowdsTable,
	"counts":      countsTable,
}

// pages are what Render fills in.
var pages = []string{"performance.md"}

// Render puts the tables into the pages of the folder, and the plots and whole tables
// into the folder performance beside them.
func Render(r *Results, docs string) error {
	for _, name := range pages {
		path := filepath.Join(docs, name)
		old, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text, err := page.Fill(string(old), func(name, _ string) (string, error) {
			table := tables[name]
			if table == nil {
				return "", fmt.Errorf("no table is called %q", name)
			}
			return table(r), nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	folder := filepath.Join(docs, "performance")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"libraries.csv": librariesCSV(r), "loads.csv": loadsCSV(r), "aims.csv": figuresCSV(r),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return plots(r, folder)
}

// Text shows the tables of results, for a terminal: the aims, what users ask and the other
// libraries.
func Text(w io.Writer, r *Results) error {
	for _, name := range []string{
		"machine", "figures", "answers", "libraries", "glance", "options", "cost", "redis", "beside", "alone", "turns", "throughput", "network", "latency",
		"server", "client", "memory", "allocations", "stalls", "crowds", "counts",
	} {
		text := tables[name](r)
		if text == notMeasured {
			continue
		}
		if _, err := fmt.Fprintf(w, "\n## %s\n\n%s", name, text); err != nil {
			return err
		}
	}
	return nil
}
