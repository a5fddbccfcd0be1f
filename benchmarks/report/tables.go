package report

import (
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

// loads returns the loads of a metric on a network, in order: one limiter first.
func (r *Results) loads(metric, network, mode string) []Key {
	seen := map[Key]bool{}
	for k := range r.Values {
		if k.Metric == metric && k.Network == network && k.Mode == mode {
			// Redisson alone is tried with more thread counts.
			if k.Peer != peer.Redisson {
				seen[Key{Callers: k.Callers, Limiters: k.Limiters}] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(seen), compare)
}

// head names a load.
func head(k Key) string {
	callers := "callers"
	if k.Callers == 1 {
		callers = "caller"
	}
	if k.Limiters > 1 {
		return fmt.Sprintf("%d %s, %s limiters", k.Callers, callers, group(k.Limiters))
	}
	return fmt.Sprintf("%d %s", k.Callers, callers)
}

// byLoad is a table of the peers by the loads of a metric.
func (r *Results) byLoad(metric, network, mode string, cell func(Key) string) string {
	loads := r.loads(metric, network, mode)
	if len(loads) == 0 {
		return "Not measured.\n"
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
			l.Metric, l.Peer, l.Network, l.Mode = metric, name, network, mode
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

// latencies are the three percentiles.
func (r *Results) latencies(k Key) string {
	var parts []string
	for _, metric := range []string{P50, P99, P999} {
		k.Metric = metric
		if s := r.Of(k); s.Rounds > 0 {
			parts = append(parts, number(s.Median))
		}
	}
	return strings.Join(parts, " / ")
}

// spread shows a median and, where they differ, the lowest and highest round.
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

func figuresTable(r *Results) string {
	t := newTable("what", "at least", "aim", "measured", "lowest – highest round", "", "beside")
	for _, f := range figures(r) {
		bound := func(v float64) string { return number(v) + f.unit }
		measured, between := "", ""
		if f.Rounds > 0 {
			measured = "**" + number(f.Median) + f.unit + "**"
			if f.Min != f.Max {
				between = number(f.Min) + " – " + number(f.Max)
			}
		}
		t.row(f.what, bound(f.atLeast), bound(f.aim), measured, between, f.verdict(), f.beside)
	}
	return t.String()
}

func setupTable(r *Results) string {
	t := &table{}
	t.WriteString("| | how it is used |\n|---|---|\n")
	for _, a := range r.About {
		if name, ok := strings.CutPrefix(a.Name, "peer "); ok {
			t.row(bold(name), a.Text)
		}
	}
	return t.String()
}

func machineTable(r *Results) string {
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

func serverTable(r *Results) string {
	var b strings.Builder
	for _, mode := range []string{Granting, Refusing} {
		title(&b, mode)
		b.WriteString(r.byLoad(ServerTime, Direct, mode, func(k Key) string {
			var parts []string
			for _, metric := range []string{ServerTime, ServerCPU} {
				k.Metric = metric
				if s := r.Of(k); s.Rounds > 0 {
					parts = append(parts, number(s.Median))
				}
			}
			return strings.Join(parts, " / ")
		}))
	}
	return b.String()
}

func title(b *strings.Builder, text string) {
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	b.WriteString(strings.ToUpper(text[:1]) + text[1:] + ":\n\n")
}

// both has a table for granting and one for refusing.
func (r *Results) both(metric, network string, cell func(Key) string) string {
	var b strings.Builder
	for _, mode := range []string{Granting, Refusing} {
		title(&b, mode)
		b.WriteString(r.byLoad(metric, network, mode, cell))
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
	return t.String()
}

func steadyTable(r *Results) string {
	const mode = "steadily"
	t := newTable("", "thousand decisions/s", "p50 / p99 / p99.9, µs", "server time, µs a decision")
	for _, name := range r.names() {
		k := loadKey(Rate, name, mode, 256, 1)
		if len(r.Values[k]) == 0 {
			continue
		}
		cost := k
		cost.Metric = ServerTime
		t.row(bold(name), r.thousands(k), r.latencies(k), r.plain(cost))
	}
	return t.String()
}

func aloneTable(r *Results) string {
	t := newTable("", "p50, µs", "against EVALSHA")
	for _, kind := range []string{"plain", "cancellable"} {
		bare := loadKey(Solo, peer.EVALSHA, kind, 1, 1)
		t.row("EVALSHA, "+kind+" ctx", r.plain(bare), "")
		for _, mode := range []string{Granting, Refusing} {
			k := loadKey(Solo, peer.Ours, mode+", "+kind, 1, 1)
			t.row(bold(peer.Ours)+", "+mode+", "+kind+" ctx", r.plain(k), spread(r.Ratio(k, bare))+"x")
		}
	}
	honoured, bare := loadKey(Solo, peer.EVALSHA, "honoured", 1, 1), loadKey(Solo, peer.EVALSHA, "cancellable", 1, 1)
	t.row("EVALSHA in a goroutine that its caller can leave", r.plain(honoured), spread(r.Ratio(honoured, bare))+"x")
	return t.String()
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
	return t.String()
}

func stallsTable(r *Results) string {
	modes := map[string]bool{}
	for k := range r.Values {
		if k.Metric == Longest {
			modes[k.Mode] = true
		}
	}
	if len(modes) == 0 {
		return "Not measured.\n"
	}
	t := newTable("a million members, of which", peer.Ours+", ms", peer.Redisson+", ms")
	for _, mode := range slices.Sorted(maps.Keys(modes)) {
		var cells []string
		for _, name := range []string{peer.Ours, peer.Redisson} {
			cells = append(cells, r.thousands(loadKey(Longest, name, mode, 1, 1)))
		}
		t.row(mode, cells...)
	}
	return t.String()
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
	return t.String()
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
	return t.String()
}
