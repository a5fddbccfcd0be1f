package chaos_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

var (
	minutes   = flag.Float64("minutes", 0, "how long rounds go on; 0 for a few rounds")
	chaosSeed = flag.Uint64("seed", 0, "seed of the rounds; 0 draws one")
	onlyRound = flag.Int("round", 0, "the number of the only round to make, from 1")
	onlyArena = flag.String("arena", "", "the only servers to use: "+strings.Join(arenas, ", "))
)

var arenas = []string{single, cluster, sentinel}

// fewRounds are those of a run that nobody asked to be longer.
const fewRounds = 2

func TestChaos(t *testing.T) { //nolint:paralleltest // it counts goroutines
	redistest.SkipShort(t, "real redis-servers")
	redis.SetLogger(silence{})
	t.Cleanup(jvms.close)
	seed, started := askedSeed(), servers{}
	sum := &summary{faults: map[string]int{}, answers: map[answer]int{}, orders: map[string]int{}}
	for number := range askedRounds(fewRounds) {
		p := askedPlan(t, seed, number)
		a := started.of(t, p.servers)
		before := runtime.NumGoroutine()
		t.Run(fmt.Sprintf("round %d", number), func(t *testing.T) {
			r := p.run(t, a)
			r.record()
			sum.add(r)
			if len(r.violations) > 0 && (*shrinking || *minutes > 0) {
				r = r.shrunk(t)
			}
			r.report()
			if r.broken.Load() {
				delete(started, p.servers)
			}
		})
		checkGoroutines(t, p, before)
		if t.Failed() {
			break
		}
	}
	t.Logf("-seed %d: %s", seed, sum)
}

func askedSeed() uint64 { return cmp.Or(*chaosSeed, rand.Uint64()) }

func askedArenas() []string {
	if *onlyArena != "" {
		return []string{*onlyArena}
	}
	return arenas
}

// askedRounds yields the numbers of rounds: a few, and more until the time is over.
func askedRounds(few int) iter.Seq[int] {
	until := time.Now().Add(time.Duration(*minutes * float64(time.Minute)))
	return func(yield func(int) bool) {
		if *onlyRound > 0 {
			yield(*onlyRound)
			return
		}
		for number := 1; number <= few || time.Now().Before(until); number++ {
			if !yield(number) {
				return
			}
		}
	}
}

// servers are those that rounds have had so far.
type servers map[string]arena

// of starts servers of that kind, if there are none.
func (s servers) of(t *testing.T, name string) arena {
	t.Helper()
	if s[name] == nil {
		s[name] = startArena(t, name)
	}
	return s[name]
}

// askedPlan is that of a round, without what the flags leave out and this machine lacks.
func askedPlan(t *testing.T, seed uint64, number int) *plan {
	t.Helper()
	p := newPlan(seed, number, askedArenas())
	p.drawRedisson(redissons())
	p = askedReduction(t).of(p)
	if !prepareRedisson(t, p) {
		*redissonFlag = ""
		p = askedReduction(t).of(newPlan(seed, number, askedArenas()))
	}
	if len(p.limiters) == 0 {
		t.Fatalf("round %d has none of the limiters %s", number, *onlyLimiters)
	}
	return p
}

// silence keeps go-redis from telling of each connection that it can't make.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// summary is what a run came to.
type summary struct {
	rounds, calls int
	faults        map[string]int
	answers       map[answer]int
	orders        map[string]int
}

func (s *summary) add(r *round) {
	s.rounds++
	s.calls += len(r.calls)
	for _, e := range r.events {
		s.faults[e.kind]++
	}
	for i := range r.orders {
		s.orders[r.orders[i].found()]++
	}
	for i := range r.calls {
		s.answers[r.calls[i].Answer]++
	}
}

func (s *summary) String() string {
	faults := 0
	for _, n := range s.faults {
		faults += n
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d rounds, %d calls, %d faults", s.rounds, s.calls, faults)
	for _, kind := range sorted(s.faults) {
		fmt.Fprintf(&text, "\n%8d  %s", s.faults[kind], kind)
	}
	text.WriteString("\nanswers:")
	for _, a := range sorted(s.answers) {
		fmt.Fprintf(&text, "\n%8d  %s", s.answers[a], a)
	}
	text.WriteString("\norders of calls found:")
	for _, found := range sorted(s.orders) {
		fmt.Fprintf(&text, "\n%8d  %s", s.orders[found], found)
	}
	return text.String()
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
