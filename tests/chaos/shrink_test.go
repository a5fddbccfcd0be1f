package chaos_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	shrinking    = flag.Bool("shrink", false, "play a round that fails again with less, as runs of -minutes do")
	withoutFault = flag.String("without", "", "faults that rounds are not to have, with commas between")
	onlyClients  = flag.Int("clients", 0, "how many Clients rounds are to have at most; 0: all")
	onlyLimiters = flag.String("limiters", "", "the only limiters of a round, with commas between")
)

const (
	shrinkTime  = 90 * time.Second // for which smaller rounds are looked for
	shrinkTries = 3                // how often one is played that does not fail: no two are the same
)

// A reduction is what a round does without.
type reduction struct {
	Without  []string `json:"without"`  // faults
	Clients  int      `json:"clients"`  // at most; 0: all
	Limiters []string `json:"limiters"` // the only ones; none: all
}

// askedReduction is that of the flags.
func askedReduction(t *testing.T) reduction {
	t.Helper()
	list := func(text string) []string {
		return strings.FieldsFunc(text, func(c rune) bool { return c == ',' })
	}
	x := reduction{list(*withoutFault), *onlyClients, list(*onlyLimiters)}
	known := (&plan{faults: faults, weather: weathers}).names()
	for _, name := range x.Without {
		require.Contains(t, known, name, "-without")
	}
	return x
}

// of returns what is left of a plan.
func (x reduction) of(p *plan) *plan {
	less := *p
	less.reduced = x
	if x.Clients > 0 {
		less.clients = p.clients[:min(x.Clients, len(p.clients))]
	}
	less.weather = slices.DeleteFunc(slices.Clone(p.weather), func(w *weather) bool { return slices.Contains(x.Without, w.name) })
	less.faults = slices.DeleteFunc(slices.Clone(p.faults), func(f *fault) bool { return slices.Contains(x.Without, f.name) })
	if len(x.Limiters) == 0 {
		return &less
	}
	gone := func(name string) bool { return !slices.Contains(x.Limiters, name) }
	less.limiters = nil
	for _, l := range p.limiters {
		if gone(l.name) {
			continue
		}
		alike := *l
		if alike.family = slices.DeleteFunc(slices.Clone(l.family), gone); len(alike.family) < 2 {
			alike.family = nil
		}
		less.limiters = append(less.limiters, &alike)
	}
	if !slices.ContainsFunc(less.limiters, func(l *limiter) bool { return l.redisson != "" }) {
		less.clients = slices.DeleteFunc(slices.Clone(less.clients), func(c clientPlan) bool { return c.redisson != "" })
	}
	return &less
}

// String returns the flags that bring it about.
func (x reduction) String() string {
	var text strings.Builder
	if len(x.Without) > 0 {
		fmt.Fprintf(&text, " -without %q", strings.Join(x.Without, ","))
	}
	if x.Clients > 0 {
		fmt.Fprintf(&text, " -clients %d", x.Clients)
	}
	if len(x.Limiters) > 0 {
		fmt.Fprintf(&text, " -limiters %q", strings.Join(x.Limiters, ","))
	}
	return text.String()
}

// names returns those of the plan's faults.
func (p *plan) names() (names []string) {
	for _, f := range p.faults {
		names = append(names, f.name)
	}
	for _, w := range p.weather {
		names = append(names, w.name)
	}
	return names
}

// smallest returns what a round that fails may do without, as far as fails tells in time.
// It tries large parts first: all limiters but the one in question, all faults, all
// Clients but one.
func smallest(p *plan, limiter string, until time.Time, fails func(reduction) bool) reduction {
	steps := []func(*reduction){
		func(x *reduction) {
			if limiter != "" {
				x.Limiters = []string{limiter}
			}
		},
		func(x *reduction) { x.Without = slices.Concat(x.Without, p.names()) },
		func(x *reduction) { x.Clients = 1 },
	}
	for _, name := range p.names() {
		steps = append(steps, func(x *reduction) {
			if !slices.Contains(x.Without, name) {
				x.Without = append(slices.Clone(x.Without), name)
			}
		})
	}
	best := p.reduced
	for _, step := range steps {
		x := best
		step(&x)
		if !reflect.DeepEqual(x, best) && time.Now().Before(until) && fails(x) {
			best = x
		}
	}
	return best
}

// shrunk plays a round that failed again with less, and returns the smallest one that
// failed the same check.
func (r *round) shrunk(t *testing.T) *round {
	t.Helper()
	first, found := r.violations[0], r
	smallest(&r.plan, first.limiter, time.Now().Add(shrinkTime), func(x reduction) (failed bool) {
		for try := 0; try < shrinkTries && !failed && !found.broken.Load(); try++ {
			t.Run("with less", func(t *testing.T) {
				less := x.of(&r.plan)
				prepareRedisson(t, less)
				again := less.run(t, r.arena)
				failed = slices.ContainsFunc(again.violations, func(v violation) bool { return v.check == first.check })
				if failed || again.broken.Load() {
					found = again
				}
			})
		}
		return failed
	})
	if found.broken.Load() {
		r.broken.Store(true)
		return r
	}
	found.t = t
	return found
}

func TestWhatARoundCanDoWithout(t *testing.T) {
	t.Parallel()
	p := newPlan(7, 3, []string{single})
	p.faults, p.weather = slices.Clone(networkFaults), weathers[:2]
	last := p.limiters[len(p.limiters)-1].name
	plays := 0
	x := smallest(p, last, time.Now().Add(time.Hour), func(x reduction) bool {
		plays++
		less := x.of(p)
		return slices.Contains(less.names(), "connections cut") && len(less.clients) > 1
	})
	assert.Equal(t, []string{last}, x.Limiters)
	assert.Zero(t, x.Clients)
	less := x.of(p)
	assert.Equal(t, []string{"connections cut"}, less.names())
	assert.Len(t, less.limiters, 1)
	assert.LessOrEqual(t, plays, 8)
	assert.Equal(t, fmt.Sprintf(` -without "bandwidth choked,partitioned,request dropped,answer dropped" -limiters %q`, last), x.String())
}

// Another process draws its round's plan again: what is left out here is left out there.
func TestAProcessDoesWithoutTheSame(t *testing.T) {
	t.Parallel()
	shared := 0
	for number := range 200 {
		p := newPlan(7, number+1, arenas)
		p.drawRedisson([]string{newestRedisson})
		if p.redisson != "" {
			shared++
		}
		names := []string{p.limiters[0].name, p.limiters[len(p.limiters)-1].name}
		for _, x := range []reduction{{}, {Clients: 1}, {Limiters: names}, {Without: p.names(), Clients: 2, Limiters: names[:1]}} {
			here := x.of(p)
			text, err := json.Marshal(newTask(here, here.clients[0], 1))
			require.NoError(t, err)
			var order task
			require.NoError(t, json.Unmarshal(text, &order))
			there := order.plan()
			assert.Equal(t, here.limiters, there.limiters)
			assert.Equal(t, here.clients, there.clients)
			assert.Equal(t, here.redisson, there.redisson)
			for _, c := range here.clients {
				assert.True(t, c.redisson == "" || slices.ContainsFunc(here.limiters, func(l *limiter) bool { return l.redisson != "" }),
					"a program with Redisson has no limiter")
			}
		}
	}
	assert.Positive(t, shared)
}
