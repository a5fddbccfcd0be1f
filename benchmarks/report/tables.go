package report

import (
	"encoding/csv"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
)

// table is a Markdown table.
type table struct {
	strings.Builder
}

// newTable begins a table; the columns behind the first are numbers.
func newTable(first string, columns ...string) *table {
	t := &table{}
	t.row(first, columns...)
	t.WriteString("|---" + strings.Repeat("|---:", len(columns)) + "|\n")
	return t
}

func (t *table) row(first string, columns ...string) {
	t.WriteString("| " + strings.Join(append([]string{first}, columns...), " | ") + " |\n")
}

const notMeasured = "Not measured.\n"

// text is the table, if it has a row below its head and the line under that.
func (t *table) text() string {
	if strings.Count(t.String(), "\n") < 3 {
		return notMeasured
	}
	return t.String()
}

// names returns the peers that were measured, in their order.
func (r *Results) names() []string {
	seen := map[string]bool{}
	for k := range r.Values {
		seen[k.Peer] = true
	}
	var names []string
	for _, kind := range peer.Kinds() {
		if seen[kind.Name] {
			names = append(names, kind.Name)
			delete(seen, kind.Name)
		}
	}
	return append(names, slices.Sorted(maps.Keys(seen))...)
}

// loads returns the loads of a metric on a network, in order: one limiter first,
// and those that ask a few for most last.
func (r *Results) loads(metric, network, mode string) []Key {
	seen := map[Key]bool{}
	for k := range r.Values {
		if k.Metric == metric && k.Network == network && (k.Mode == mode || k.Mode == mode+Skewed) {
			// Redisson alone is tried with more thread counts.
			if k.Peer != peer.Redisson {
				seen[Key{Mode: k.Mode, Callers: k.Callers, Limiters: k.Limiters}] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(seen), compare)
}

// head names a load.
func head(k Key) string {
	text := fmt.Sprintf("%d callers", k.Callers)
	if k.Callers == 1 {
		text = "1 caller"
	}
	if k.Limiters > 1 {
		text += fmt.Sprintf(", %s limiters", group(k.Limiters))
	}
	if strings.HasSuffix(k.Mode, Skewed) {
		text += ", skewed"
	}
	return text
}

// byLoad is a table of the peers by the loads of a metric.
func (r *Results) byLoad(metric, network, mode string, cell func(Key) string) string {
	loads := r.loads(metric, network, mode)
	if len(loads) == 0 {
		return notMeasured
	}
	var heads []string
	for _, l := range loads {
		heads = append(heads, head(l))
	}
	t := newTable("", heads...)
	for _, name := range r.names() {
		var cells []string
		found := false
		for _, l := range loads {
			l.Metric, l.Peer, l.Network = metric, name, network
			found = found || len(r.Values[l]) > 0
			cells = append(cells, cell(l))
		}
		if found {
			t.row(bold(name), cells...)
		}
	}
	return t.String()
}

func bold(name string) string {
	if strings.HasPrefix(name, peer.Ours) {
		return "**" + name + "**"
	}
	return name
}

// thousands is a rate with its spread, in thousands.
func (r *Results) thousands(k Key) string {
	s := r.Of(k)
	if s.Rounds == 0 {
		return ""
	}
	return spread(Summary{s.Median / 1000, s.Min / 1000, s.Max / 1000, s.Rounds})
}

func (r *Results) plain(k Key) string { return spread(r.Of(k)) }

// medians returns a cell of the medians of metrics of a load.
func (r *Results) medians(metrics ...string) func(Key) string {
	return func(k Key) string {
		var parts []string
		for _, metric := range metrics {
			k.Metric = metric
			if s := r.Of(k); s.Rounds > 0 {
				parts = append(parts, number(s.Median))
			}
		}
		return strings.Join(parts, " / ")
	}
}

// spread shows a median and, if they differ, the lowest and highest round.
func spread(s Summary) string {
	switch low, mid, high := number(s.Min), number(s.Median), number(s.Max); {
	case s.Rounds == 0:
		return ""
	case low == high:
		return mid
	default:
		return fmt.Sprintf("%s (%s–%s)", mid, low, high)
	}
}

// number shows three digits that count.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a == math.Trunc(a) && a < 1000, a >= 1000:
		return group(int(math.Round(v)))
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 1:
		return fmt.Sprintf("%.2f", v)
	case a >= 0.1:
		return fmt.Sprintf("%.3f", v)
	default:
		return fmt.Sprintf("%.2g", v)
	}
}

// group puts commas between thousands.
func group(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// figuresTable shows the figures to reach.
func figuresTable(r *Results) string {
	t := newTable("what", figureColumns...)
	for _, f := range figures(r) {
		t.row(f.what, f.cells()...)
	}
	return t.String()
}

// figuresCSV has all figures.
func figuresCSV(r *Results) string {
	rows := [][]string{append([]string{"what"}, figureColumns...)}
	for _, f := range figures(r) {
		rows = append(rows, append([]string{f.what}, f.cells()...))
	}
	return strings.ReplaceAll(csvText(rows), "**", "")
}

func csvText(rows [][]string) string {
	var b strings.Builder
	_ = csv.NewWriter(&b).WriteAll(rows) // a Builder takes everything
	return b.String()
}

var figureColumns = []string{"at least", "aim", "measured", "lowest – highest round", "verdict", "beside"}

func (f *figure) cells() []string {
	bound := func(v float64) string {
		if f.told {
			return ""
		}
		return number(v) + f.unit
	}
	measured, between := "", ""
	if f.Rounds > 0 {
		measured = "**" + number(f.Median) + f.unit + "**"
		if f.Min != f.Max {
			between = number(f.Min) + " – " + number(f.Max)
		}
	}
	return []string{bound(f.bounds.atLeast), bound(f.bounds.aim), measured, between, f.verdict(), f.beside}
}

func machineTable(r *Results) string {
	if r.Fact("date") == "" {
		return notMeasured
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, on %s: Redis %s, %s, Java %s; %s rounds, %s in all.\n\n",
		r.Fact("date"), r.Fact("machine"), r.Fact("redis"), r.Fact("go"), r.Fact("java"), r.Fact("rounds"), r.Fact("duration"))
	var modules []string
	for _, a := range r.About {
		if name, ok := strings.CutPrefix(a.Name, "module "); ok {
			modules = append(modules, fmt.Sprintf("%s %s", name, a.Text))
		}
	}
	b.WriteString("Modules: " + strings.Join(modules, ", ") + ".\n")
	return b.String()
}

// both has a table for granting and one for refusing, beside the server.
func (r *Results) both(metric string, cell func(Key) string) string {
	return twice(func(mode string) string { return r.byLoad(metric, Direct, mode, cell) })
}

// twice has what shows a mode for granting and for refusing.
func twice(of func(mode string) string) string {
	var b strings.Builder
	for _, mode := range []string{Granting, Refusing} {
		text := of(mode)
		if text == notMeasured {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		b.WriteString(strings.ToUpper(mode[:1]) + mode[1:] + ":\n\n" + text)
	}
	if b.Len() == 0 {
		return notMeasured
	}
	return b.String()
}

func memoryTable(r *Results) string {
	t := newTable("", "bytes a limiter", "bytes a permit")
	for _, name := range r.names() {
		limiter := r.Of(loadKey(BytesLimiter, name, Refusing, 256, manyLimiters))
		permit := r.Of(loadKey(BytesPermit, name, Granting, 256, 1))
		if limiter.Rounds+permit.Rounds > 0 {
			kept := "none kept"
			if kind, _ := peer.Find(name); kind.Log {
				kept = spread(permit)
			}
			t.row(bold(name), spread(limiter), kept)
		}
	}
	return t.text()
}

func allocationsTable(r *Results) string {
	t := newTable("", "granting", "granting, cancellable ctx", "refusing", "refusing, cancellable ctx")
	for _, name := range r.names() {
		var cells []string
		found := false
		for _, mode := range []string{Granting, Refusing} {
			for _, kind := range []string{"plain", "cancellable"} {
				k := loadKey(Allocations, name, mode+", "+kind, 1, 1)
				size := k
				size.Metric = AllocatedSize
				cell := ""
				if s := r.Of(k); s.Rounds > 0 {
					cell, found = fmt.Sprintf("%s, %s B", number(s.Median), number(math.Round(r.Of(size).Median))), true
				}
				cells = append(cells, cell)
			}
		}
		if found {
			t.row(bold(name), cells...)
		}
	}
	return t.text()
}

func stallsTable(r *Results) string {
	modes := map[string]bool{}
	for k := range r.Values {
		if k.Metric == Longest {
			modes[k.Mode] = true
		}
	}
	if len(modes) == 0 {
		return notMeasured
	}
	t := newTable("a million members, of which", peer.Ours+", ms", peer.Redisson+", ms")
	for _, mode := range slices.Sorted(maps.Keys(modes)) {
		var cells []string
		for _, name := range []string{peer.Ours, peer.Redisson} {
			cells = append(cells, r.thousands(loadKey(Longest, name, mode, 1, 1)))
		}
		t.row(mode, cells...)
	}
	return t.text()
}

func crowdsTable(r *Results) string {
	t := newTable("", "most grants in one interval", "permits of an idle limiter")
	for _, name := range r.names() {
		fullest := r.Of(loadKey(Fullest, name, "crowds", 256, 1))
		idle := r.Of(loadKey(AfterIdle, name, "crowds", 256, 1))
		if fullest.Rounds > 0 {
			t.row(bold(name), spread(fullest), spread(idle))
		}
	}
	return t.text()
}

// countsTable sums up what must be 0 over all loads of the run.
func countsTable(r *Results) string {
	t := newTable("", "loads", "wrong answers", "errors", "permits unaccounted for")
	for _, name := range r.names() {
		var wrong, errors, unaccounted float64
		loads, accounted := 0, false
		for k, values := range r.Values {
			if k.Peer != name {
				continue
			}
			for _, v := range values {
				switch k.Metric {
				case Wrong:
					wrong += v
					loads++
				case Errors:
					errors += v
				case Unaccounted:
					unaccounted += math.Abs(v)
					accounted = true
				}
			}
		}
		if loads == 0 {
			continue
		}
		last := ""
		if accounted {
			last = number(unaccounted)
		}
		t.row(bold(name), number(float64(loads)), number(wrong), number(errors), last)
	}
	return t.text()
}
