// Package report keeps results, and shows them in tables and plots.
package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A Key names a measurement, its peer and its method.
type Key struct {
	Metric   string
	Peer     string
	Network  string // Direct or Delayed
	Mode     string // Granting or Refusing, or what the metric calls its cases
	Callers  int
	Limiters int
}

// What the fields of a Key may hold.
const (
	Direct  = "direct"
	Delayed = "1 ms"

	Granting = "granting"
	Refusing = "refusing"

	// OneClient ends the mode of loads by one Redis client, whatever the library.
	OneClient = ", one client"

	// Skewed ends the mode of loads that ask a few limiters for most.
	Skewed = ", skewed"
)

// Metrics.
const (
	Rate          = "decisions/s"
	P50           = "p50 us"
	P99           = "p99 us"
	ServerTime    = "server us/decision"
	ServerCPU     = "server CPU us/decision"
	ClientCPU     = "client CPU us/decision"
	Errors        = "errors"
	Wrong         = "wrong answers"
	Unaccounted   = "permits unaccounted for"
	BytesLimiter  = "bytes/limiter"
	BytesPermit   = "bytes/permit"
	Beside        = "p50 us beside bare calls"
	Solo          = "solo p50 us"
	InTurn        = "server us/decision, in turn"
	Allocations   = "allocations"
	AllocatedSize = "allocated bytes"
	Longest       = "longest script us"
	Fullest       = "grants in the fullest interval"
	AfterIdle     = "permits after an idle interval"
	HungSlowest   = "slowest call of a hung server us"
	HungMost      = "most goroutines of a hung server"
)

// Modes of callers beside as many bare calls: all of one limiter, or each of its
// own; with the ending of those that may wait and the ending of those that pause.
const (
	OneLimiter = "one limiter"
	OwnLimiter = "a limiter each"
	MayWait    = ", timeout 1 s"
	Paused     = ", pauses"
)

// Modes of a caller who is alone. Its context is plain or cancellable; Honoured
// is a bare call that its caller can leave; Punctual ends the modes of a client
// with ContextTimeoutEnabled.
const (
	Plain       = "plain"
	Cancellable = "cancellable"
	Honoured    = "honoured"
	Punctual    = ", punctual"
)

// Results are the measurements of a run: one value for each round, in order.
type Results struct {
	About  []About
	Values map[Key][]float64
}

// About is a fact about the run or a peer.
type About struct{ Name, Text string }

// New returns empty results.
func New() *Results { return &Results{Values: map[Key][]float64{}} }

// Note adds a fact.
func (r *Results) Note(name, text string) { r.About = append(r.About, About{name, text}) }

// Fact returns the fact of that name.
func (r *Results) Fact(name string) string {
	for _, a := range r.About {
		if a.Name == name {
			return a.Text
		}
	}
	return ""
}

// Add adds the next round's value.
func (r *Results) Add(k Key, value float64) { r.Values[k] = append(r.Values[k], value) }

// columns stand above the values.
const columns = "metric\tpeer\tnetwork\tmode\tcallers\tlimiters\trounds..."

// Write writes the results as text: facts, then a line of columns parted by tabs
// for each key.
func (r *Results) Write(w io.Writer) error {
	out := bufio.NewWriter(w)
	for _, a := range r.About {
		fmt.Fprintf(out, "# %s: %s\n", a.Name, a.Text)
	}
	fmt.Fprintln(out, columns)
	for _, k := range slices.SortedFunc(maps.Keys(r.Values), compare) {
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%d\t%d", k.Metric, k.Peer, k.Network, k.Mode, k.Callers, k.Limiters)
		for _, v := range r.Values[k] {
			fmt.Fprintf(out, "\t%s", strconv.FormatFloat(v, 'g', 6, 64))
		}
		fmt.Fprintln(out)
	}
	return out.Flush()
}

func compare(a, b Key) int {
	return cmp.Or(
		cmp.Compare(a.Metric, b.Metric), cmp.Compare(a.Network, b.Network), cmp.Compare(a.Mode, b.Mode),
		cmp.Compare(a.Limiters, b.Limiters), cmp.Compare(a.Callers, b.Callers), cmp.Compare(a.Peer, b.Peer))
}

// Read reads what Write wrote.
func Read(in io.Reader) (*Results, error) {
	r := New()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if fact, ok := strings.CutPrefix(line, "# "); ok {
			name, text, _ := strings.Cut(fact, ": ")
			r.Note(name, text)
			continue
		}
		if line == columns {
			continue
		}
		if err := r.parse(strings.Split(line, "\t")); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return r, lines.Err()
}

func (r *Results) parse(words []string) error {
	if len(words) < 7 {
		return fmt.Errorf("%d columns", len(words))
	}
	k := Key{Metric: words[0], Peer: words[1], Network: words[2], Mode: words[3]}
	var err error
	if k.Callers, err = strconv.Atoi(words[4]); err != nil {
		return err
	}
	if k.Limiters, err = strconv.Atoi(words[5]); err != nil {
		return err
	}
	for _, word := range words[6:] {
		v, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return err
		}
		r.Add(k, v)
	}
	return nil
}

// A Summary is the median of the rounds, and their spread.
type Summary struct {
	Median, Min, Max float64
	Rounds           int
}

// Summarize returns the summary of values; Rounds is 0 if there is none.
func Summarize(values []float64) Summary {
	if len(values) == 0 {
		return Summary{}
	}
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return Summary{(v[(n-1)/2] + v[n/2]) / 2, v[0], v[n-1], n}
}

// Of returns the summary of a key's results.
func (r *Results) Of(k Key) Summary { return Summarize(r.Values[k]) }

// Ratio returns a as a multiple of b, round by round.
func (r *Results) Ratio(a, b Key) Summary {
	x, y := r.Values[a], r.Values[b]
	var ratios []float64
	for i := range min(len(x), len(y)) {
		if y[i] > 0 {
			ratios = append(ratios, x[i]/y[i])
		}
	}
	return Summarize(ratios)
}

// Best returns the key of the highest median among those that differ from k in
// their peer and callers only.
func (r *Results) Best(k Key, peers ...string) Key {
	best := k
	for other := range r.Values {
		if slices.Contains(peers, other.Peer) {
			same := other
			same.Peer, same.Callers = k.Peer, k.Callers
			if same == k && r.Of(other).Median > r.Of(best).Median {
				best = other
			}
		}
	}
	return best
}
