package chaos_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
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

// A reduction is what a round leaves out.
type reduction struct {
	Without  []string `json:"without"`  // faults
	Clients  int      `json:"clients"`  // at most; 0: all
	Limiters []string `json:"limiters"` // the only ones; none: all
}

// askedReduction is the flags' reduction.
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

// of returns the rest of a plan.
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

// Another process draws its round's plan again: both leave out the same.
func TestAProcessLeavesOutTheSame(t *testing.T) {
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

// A mutant is a fault of ours that rounds must tell.
type mutant struct {
	name string
	limitertest.Mutant

	closing bool                  // it is there only while a Client is closed
	in      mood                  // of rounds in which it shows; all without
	amid    string                // all that becomes of commands in them, of many; anything without
	shows   func(l *limiter) bool // on which limiters it can show
	alone   bool                  // a round that has little else tells it: with -shrink
}

var mutants = []mutant{
	{
		name: "what callers who have gone were granted is lost", in: gentle, shows: exactly,
		Mutant: limitertest.Mutant{
			Script: lua.GiveBack,
			Old:    `local permits = math.min(tonumber(ARGV[2]), permits_of(member))`,
			New:    `local permits = 0`,
		},
	},
	{
		name: "a grant costs one permit less", shows: (*limiter).isRate, alone: true,
		Mutant: limitertest.Mutant{Old: `call('DECRBY', value_key, sum_text)`, New: `call('DECRBY', value_key, sum_text - 1)`},
	},
	{
		name: "a repeat has another identity", in: dropping, amid: "answer dropped", shows: exactly,
		Mutant: limitertest.Mutant{
			Script: lua.Acquire,
			Old:    `ARGV[4], ARGV[5]` + "\n",
			New: `ARGV[4], ''
if (ARGV[5] or '') ~= '' then
  member = string.sub(member, 1, 1) .. string.reverse(string.sub(member, 2, 17)) .. string.sub(member, 18)
  ARGV[1] = member
end
`,
		},
	},
	{
		name: "a set's time to live is not renewed", shows: func(l *limiter) bool { return l.config.KeepAlive > 0 },
		Mutant: limitertest.Mutant{Old: `redis.call('PEXPIRE', config.permits_key, lifetime(ttl))`, New: ``},
	},
	{
		name: "more is reported free than is", in: gentle, shows: ordered,
		Mutant: limitertest.Mutant{
			Script: lua.Available,
			Old:    "return repaired and digits(free) or free",
			New:    "return free + 1",
		},
	},
	{
		name: "Reset leaves what is in use", shows: func(l *limiter) bool { return ordered(l) && l.resets && l.kind == overall },
		in: gentle,
		Mutant: limitertest.Mutant{
			Script: lua.Reset, Old: `return redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])`, New: `return 2`,
		},
	},
	{
		name: "a settlement gives nothing back", in: gentle, shows: func(l *limiter) bool { return exactly(l) && l.reserves },
		Mutant: limitertest.Mutant{
			Script: lua.SettleReservation,
			Old:    "return_permits(config, member, back, not state.unset and state.free, state.window)",
			New:    "back = 0",
		},
	},
	{
		name: "a lease is kept after Close", closing: true, in: gentle, shows: func(l *limiter) bool { return l.lease > 0 && l.counted() },
		Mutant: limitertest.Mutant{
			Script: lua.GiveBack,
			Old:    `local permits = math.min(tonumber(ARGV[2]), permits_of(member))`,
			New:    `local permits = 0`,
		},
	},
}

// showsIn reports whether the fault can show in a round.
func (m mutant) showsIn(p *plan) bool {
	const often = 0.1 // of all commands something becomes
	amid := m.amid == "" || p.stormy >= often && slices.ContainsFunc(p.weather, func(w *weather) bool { return w.name == m.amid })
	return amid && (m.in == "" || m.in == p.mood) && slices.ContainsFunc(p.limiters, m.shows)
}

// exactly reports whether a RateLimiter's permits in use are known exactly.
func exactly(l *limiter) bool { return l.isRate() && l.counted() && !l.wild && l.lease == 0 }

// ordered reports whether the model of a limiter is asked for an order of its calls.
func ordered(l *limiter) bool { return exactly(l) && l.kind == overall && !l.refusals && !l.byDefault }

// TestMutants puts faults into the scripts of all Clients, one at a time. Rounds that
// have a limiter on which the fault can show must tell it, within two minutes of them.
func TestMutants(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "real redis-servers, and rounds of some seconds")
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			seed, servers := askedSeed(), startArena(t, single)
			mutation := m.Mutation(t)
			spent, rounds := time.Duration(0), 0
			for number := 1; spent < 2*time.Minute; number++ {
				p := newPlan(seed, number, []string{single})
				if !m.showsIn(p) {
					continue
				}
				if m.amid != "" { // the rest would only make calls with unknown results
					p.weather = slices.DeleteFunc(p.weather, func(w *weather) bool { return w.name != m.amid })
					p.faults = nil
				}
				p.hook = func(w *goCrew) redis.Hook { return m.hook(mutation, w) }
				rounds++
				if r := p.run(t, servers); len(r.violations) > 0 {
					first := r.violations[0]
					took := (spent + first.at).Round(time.Millisecond)
					redistest.Record(t, "chaos-mutants", m.name, seed, rounds, took.Milliseconds(), first.check)
					t.Logf("shown by round %d of %v: %s: %s", rounds, took, first.check, first.text)
					if *shrinking && m.alone {
						small := r.shrunk(t)
						require.NotEmpty(t, small.violations)
						assert.Len(t, small.limiters, 1)
						assert.Len(t, small.clients, 1)
						assert.Empty(t, small.names())
						t.Log(small.text())
					}
					return
				}
				spent += p.length
			}
			t.Errorf("-seed %d: %d rounds did not tell the fault", seed, rounds)
		})
	}
}

// hook puts the fault into the scripts of a worker's Clients.
func (m mutant) hook(mutation limitertest.Mutation, w *goCrew) redis.Hook {
	if !m.closing {
		return mutation
	}
	return redistest.Hook(func(ctx context.Context, cmds []redis.Cmder, next func() error) error {
		if !w.closing.Load() { // it is there only while a Client is closed
			return next()
		}
		return mutation.Hook(ctx, cmds, next)
	})
}
