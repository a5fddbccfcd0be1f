package compat_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	layout "github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// fleet is the services that share limiters in the random turns: these in Java
// and some in Go.
type fleet struct {
	javas  []javaPeer
	oldest string // the release that Go is told to share limiters with; none without
}

// javaPeer is a service in Java.
type javaPeer struct {
	driver  *javaDriver
	release *redisson
}

// String returns the fleet's releases of Redisson.
func (f fleet) String() string {
	var versions []string
	for _, peer := range f.javas {
		if !slices.Contains(versions, peer.release.version) {
			versions = append(versions, peer.release.version)
		}
	}
	return strings.Join(versions, "+")
}

// playTurns has Go and Java services work the same limiters by turns, at
// random. After every operation its answer and all that Redis holds must be
// what the model says.
//
// No result depends on how fast the machine is. Intervals are long, time passes
// by moving the state back in time, and no operation comes near the end of
// anything. Where the machine stood still for seconds, so that one did, the
// history goes on from what Redis holds then.
func playTurns(t *testing.T, f fleet) {
	t.Helper()
	w := newWorld(t, f)
	defer func() {
		for _, kind := range slices.Sorted(maps.Keys(w.counts)) {
			record(t, f, kind, w.counts[kind].compared, w.counts[kind].mismatches)
		}
	}()
	begin := time.Now()
	w.miscount(t, w.limiters[0])
	for w.operations < *operations {
		w.turn(t)
	}
	w.requireNoOtherKeys(t)
	miscounting := slices.ContainsFunc(f.javas, func(peer javaPeer) bool { return peer.release.countsRows() })
	require.Equal(t, miscounting, w.miscounted > 0, "rows taken for permits, %d times", w.miscounted)
	var counts strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(w.counts)) {
		fmt.Fprintf(&counts, " %s %d", kind, w.counts[kind].compared)
	}
	t.Logf("seed %d: %d operations in %v, %d of no certain answer, %d mismatches, rows taken for permits %d times;%s",
		w.seed, w.operations, time.Since(begin).Round(time.Millisecond), w.uncertain, w.mismatches, w.miscounted, counts.String())
}

// actor is a service: a client of either library.
type actor struct {
	name     string
	id       string
	layout   codec.Layout // of the members that it writes
	java     *javaClient
	redisson *redisson // of java
	goes     *rratelimiter.Client
	module   *module                              // of goes
	held     map[string]*rratelimiter.RateLimiter // handles of long standing
}

// limiter is one that all actors share, and what the model takes it to be.
type limiter struct {
	name  string
	state *state
}

type world struct {
	seed     uint64
	rnd      *rand.Rand
	rdb      *redis.Client
	actors   []*actor
	limiters []*limiter
	history  []string

	operations, uncertain, mismatches, miscounted int
	counts                                        map[string]*tally // by who did it, and what
}

// tally is how many operations were compared with the model.
type tally struct{ compared, mismatches int }

func newWorld(t *testing.T, f fleet) *world {
	t.Helper()
	w := &world{seed: *seed, rdb: redistest.Redis(t), counts: make(map[string]*tally)}
	if w.seed == 0 {
		w.seed = rand.Uint64()
	}
	w.rnd = rand.New(rand.NewPCG(w.seed, 0))
	t.Logf("seed %d", w.seed)

	for i, peer := range f.javas {
		java := peer.driver.open(t, redistest.Shared(t).URL())
		w.actors = append(w.actors, &actor{
			name: fmt.Sprint("java", i+1), id: java.ID, layout: peer.release.layout, java: java, redisson: peer.release,
		})
	}
	module := moduleFor(f.oldest)
	addGo := func(name string, opts ...rratelimiter.Option) {
		client := rratelimiter.New(w.rdb, append(opts, sharing(f.oldest)...)...)
		t.Cleanup(func() { require.NoError(t, client.Close(context.Background())) })
		w.actors = append(w.actors, &actor{
			name: name, id: idOf(t, w.rdb, client), layout: module.layout, goes: client, module: module,
			held: make(map[string]*rratelimiter.RateLimiter),
		})
	}
	shared := rratelimiter.WithClientID(redistest.Name(t))
	addGo("go1")
	addGo("go2", shared)
	addGo("go3", shared)
	// Services must not do that, but so both languages meet in a client's pair.
	addGo("go4", rratelimiter.WithClientID(w.actors[0].id))
	for range 4 {
		s := &state{pairs: map[string]*pair{"": {}}}
		for _, a := range w.actors {
			s.pairs[a.id] = &pair{}
		}
		w.limiters = append(w.limiters, &limiter{name: redistest.Name(t), state: s})
	}
	return w
}

// idOf returns the id under which a client keeps its own permits.
func idOf(t *testing.T, rdb *redis.Client, client *rratelimiter.Client) string {
	t.Helper()
	limiter := client.RateLimiter(redistest.Name(t))
	require.NoError(t, limiter.SetRate(t.Context(), perClient(rratelimiter.PerHour(1))))
	require.NoError(t, limiter.Acquire(t.Context(), 1))
	prefix := layout.KeysOf(limiter.Name(), "").ClientValue
	found, err := rdb.Keys(t.Context(), prefix+"*").Result()
	require.NoError(t, err)
	require.Len(t, found, 1)
	_, err = limiter.Delete(t.Context())
	require.NoError(t, err)
	return strings.TrimPrefix(found[0], prefix)
}

// operation is one turn of an actor.
type operation struct {
	kind string
	text string // with its arguments
	do   func() answer
	// may holds what the operation may do, told on the model; false where the
	// case is not given.
	may       []func(*call) (answer, bool)
	intervals []int64  // that it uses, besides the limiter's
	second    *limiter // that it changes too
	rule      func(*call) string
}

const maxMismatches = 5

// turn lets something happen to one of the limiters.
func (w *world) turn(t *testing.T) {
	t.Helper()
	l := w.limiters[w.rnd.IntN(len(w.limiters))]
	switch n := w.rnd.IntN(1000); {
	case n < 80:
		interval := max(l.state.interval(), 1000)
		w.pass(t, l, []int64{interval / 6, interval / 2, interval + 5000}[w.rnd.IntN(3)])
	case n < 92:
		w.lose(t, l)
	case n < 98:
		w.hasten(t, l)
	case n < 104:
		w.miscount(t, l)
	default:
		who := w.actors[w.rnd.IntN(len(w.actors))]
		w.operate(t, who, l, w.operation(t.Context(), w.kind(who, l), who, l, w.arguments(l)))
	}
}

// operate has an operation done and compares what came of it.
func (w *world) operate(t *testing.T, who *actor, l *limiter, op *operation) {
	t.Helper()
	involved := []*limiter{l}
	if op.second != nil {
		involved = append(involved, op.second)
	}
	for _, l := range involved {
		w.stepAside(t, l, op.intervals)
		limitertest.OnPurpose(t, w.rdb, l.name)
	}
	from := time.Now().UnixMilli()
	got := op.do()
	now := span{from, time.Now().UnixMilli()}
	w.note("%s: %s %s: %v", l.name, who.name, op.text, got)
	w.operations++
	count := w.count(who, op)
	count.compared++

	read := make([]*state, len(involved))
	for i, l := range involved {
		read[i] = w.read(t, l)
	}
	var diffs []string
	certain := true
	for _, may := range op.may {
		c := &call{who: who, now: now}
		wanted := make([]*state, len(involved))
		for i, l := range involved {
			wanted[i] = l.state.clone()
			c.unsure = !wanted[i].expireKeys(now) || c.unsure
		}
		c.state, c.second = wanted[0], wanted[len(wanted)-1]
		want, given := may(c)
		certain = certain && !c.unsure
		if !given {
			continue
		}
		var diff []string
		if !got.same(want) {
			diff = append(diff, fmt.Sprintf("the answer is not %v", want))
		}
		for i := range involved {
			if why := read[i].differs(wanted[i]); why != "" {
				diff = append(diff, fmt.Sprintf("%s\nwanted: %v\nfound:  %v", why, wanted[i], read[i]))
			}
		}
		if len(diff) > 0 {
			diffs = append(diffs, strings.Join(diff, "; "))
			continue
		}
		if op.rule != nil && !strings.HasPrefix(got.text, "error") {
			if why := op.rule(&call{state: read[0], who: who, now: now}); why != "" {
				count.mismatches++
				w.mismatch(t, l, fmt.Sprintf("%s\nfound: %v", why, read[0]))
			}
		}
		if c.miscounted {
			w.miscounted++
		}
		for i, l := range involved {
			l.state = read[i]
		}
		return
	}
	if certain {
		count.mismatches++
		w.mismatch(t, l, strings.Join(diffs, "\nor "))
	} else {
		w.uncertain++
		w.note("%s: something ended meanwhile: the answer is not certain", l.name)
	}
	for i, l := range involved {
		read[i].inherit(l.state, who)
		l.state = read[i]
	}
}

func (w *world) count(who *actor, op *operation) *tally {
	side := "Go"
	if who.java != nil {
		side = "Java"
	}
	key := side + " " + op.kind
	if w.counts[key] == nil {
		w.counts[key] = new(tally)
	}
	return w.counts[key]
}

func (w *world) mismatch(t *testing.T, l *limiter, why string) {
	t.Helper()
	w.mismatches++
	t.Errorf("%s, after %d operations: %s\nbefore: %v\nwhat came before, last of all the operation (-seed %d -ops %d):\n%s",
		l.name, w.operations, why, l.state, w.seed, *operations, strings.Join(w.history, "\n"))
	if w.mismatches == maxMismatches {
		t.FailNow()
	}
}

func (w *world) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
	w.history = w.history[max(0, len(w.history)-20):]
}
