package compat_test

import (
	"cmp"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

const (
	// A trace ends where nothing is missing in it.
	leastSteps, mostSteps = 180, 500
	// goldenTick is what all times in a trace are multiples of.
	goldenTick = 5 * second
)

// recorder draws a history and has it played by Redisson and this module. Only
// the seed and the outcomes decide what is drawn.
type recorder struct {
	*stage
	history
	w     *world
	steps []step
	cover *coverage
}

// recordTrace plays a history beside a release of Redisson.
func recordTrace(t *testing.T, version string) []step {
	t.Helper()
	driver, err := newJavaDriver(version)
	require.NoError(t, err)
	t.Cleanup(driver.Close)
	url := redistest.Shared(t).URL()
	h := fnv.New64a()
	_, _ = h.Write([]byte(version))
	r := &recorder{
		stage: newStage(t, version, redistest.Redis(t), driver.open(t, url), driver.open(t, url)),
		w:     &world{rnd: rand.New(rand.NewPCG(1, h.Sum64()))},
	}
	r.cover = newCoverage(r.cast, version)
	for _, name := range limiterNames {
		r.w.limiters = append(r.w.limiters, &limiter{name: name})
	}
	r.look(t)
	for _, kind := range []string{"0", "1"} {
		for _, lost := range []bool{true, false} {
			r.miscount(t, kind, lost)
		}
	}
	if r.cover.release.keepsSet {
		r.giveBack(t)
	}
	for len(r.steps) < leastSteps || len(r.cover.missing()) > 0 {
		require.Less(t, len(r.steps), mostSteps, "steps, and still %v", r.cover.missing())
		r.turn(t)
	}
	r.requireNoOtherKeys(t)
	return r.steps
}

func (r *recorder) pick(actors []*actor) *actor { return actors[r.w.rnd.IntN(len(actors))] }

// look shows the generators what the limiters are by now.
func (r *recorder) look(t *testing.T) {
	t.Helper()
	for _, l := range r.w.limiters {
		state, err := paper.state(r.states[l.name], r.cast)
		require.NoError(t, err)
		l.state = state
	}
}

// turn lets something happen to one of the limiters.
func (r *recorder) turn(t *testing.T) {
	t.Helper()
	l := r.w.limiters[r.w.rnd.IntN(len(r.w.limiters))]
	interval := max(l.state.interval(), 20*second)
	switch n := r.w.rnd.IntN(100); {
	case n < 5:
		r.pass(t, l, interval/6)
	case n < 8:
		r.pass(t, l, interval+goldenTick)
		r.ask(t, l, ranOut)
	case n < 16:
		r.runOut(t, l)
	case n < 20:
		r.take(t, l)
		r.lose(t, l)
		r.ask(t, l, ranOut)
	case n < 24:
		r.take(t, l)
		r.hasten(t, l)
		r.ask(t, l, inFuture)
	case len(r.steps) > leastSteps:
		r.makeUp(t, l)
	default:
		who := r.pick(r.actors)
		operation := r.w.kind(who, l)
		if operation == "tryAcquireTimeout" && who.redisson == nil {
			operation = []string{"take", "withDefault"}[r.w.rnd.IntN(2)]
		}
		r.operate(t, who, l, operation, r.w.arguments(l))
	}
}

// makeUp has done what has been done least, by either side.
func (r *recorder) makeUp(t *testing.T, l *limiter) {
	t.Helper()
	if !r.states[l.name].inUse() {
		r.take(t, l)
	}
	count := func(who *actor) int { return r.cover.counts[side(who)+": "+r.least(who, goldenOperations(who))] }
	who := slices.MinFunc([]*actor{r.pick(r.actors[:2]), r.pick(r.actors[2:])}, func(a, b *actor) int { return count(a) - count(b) })
	r.operate(t, who, l, r.least(who, goldenOperations(who)), r.w.arguments(l))
}

// runOut has permits taken, and some of them run out.
func (r *recorder) runOut(t *testing.T, l *limiter) {
	t.Helper()
	r.take(t, l)
	r.take(t, l)
	half := l.state.interval() / 2
	r.pass(t, l, half)
	r.take(t, l)
	r.pass(t, l, half+goldenTick)
	r.ask(t, l, ranOut)
	r.ask(t, l, ranOut)
}

// take has somebody take a few permits, of a limiter that gets a rate if it has
// none.
func (r *recorder) take(t *testing.T, l *limiter) {
	t.Helper()
	args := r.w.arguments(l)
	if l.state.config == nil {
		args.rate.rate += 5
		r.operate(t, r.pick(r.actors), l, "trySetRate", args)
	}
	args.permits = 1 + r.w.rnd.Int64N(max(1, l.state.rate()/4))
	r.operate(t, r.pick(r.peers(l)), l, "tryAcquire", args)
}

// peers are services that a limiter has one pair for.
func (r *recorder) peers(l *limiter) []*actor {
	if l.state.config["type"] == "1" {
		return []*actor{r.named("java1"), r.named("go2")}
	}
	return r.actors
}

// ask has somebody do what has to do with permits: mostly the side that has
// found something less often.
func (r *recorder) ask(t *testing.T, l *limiter, what string) {
	t.Helper()
	found := func(who *actor) int { return r.cover.counts[side(who)+" finds "+what] }
	who := slices.MinFunc(r.peers(l), func(a, b *actor) int { return found(a) - found(b) })
	if r.w.rnd.IntN(4) == 0 {
		who = r.pick(r.peers(l))
	}
	operation := "tryAcquire"
	if r.w.rnd.IntN(2) == 0 {
		operation = r.least(who, slices.DeleteFunc(goldenOperations(who), func(operation string) bool {
			return !aboutPermits[operation]
		}))
	}
	r.operate(t, who, l, operation, r.w.arguments(l))
}

// least returns which of some operations the service's side has done least.
func (r *recorder) least(who *actor, operations []string) string {
	return slices.MinFunc(operations, func(a, b string) int {
		return r.cover.counts[side(who)+": "+a] - r.cover.counts[side(who)+": "+b]
	})
}

// operate has an operation done, and checks by the model what came of it.
func (r *recorder) operate(t *testing.T, who *actor, l *limiter, operation string, args arguments) {
	t.Helper()
	at := args.ttl
	if args.keep && r.w.rnd.IntN(4) == 0 {
		at = -2 * goldenTick
	}
	s := newStep(who, l.name, operation, args, at)
	r.stepAside(t, s)
	out, err := r.play(t, s, r.states, r.last+1)
	require.NoError(t, err)
	s.outcome = out
	require.NoError(t, s.check(r.cast, r.history))
	r.add(t, s)

	op := r.operation(t.Context(), s, paper)
	if op.rule != nil && !strings.HasPrefix(s.Answer, "error") {
		require.Empty(t, op.rule(&call{state: l.state, who: who}), "after %s by %s: %s", s.Do, s.Who, s.text())
	}
}

func (r *recorder) add(t *testing.T, s step) {
	t.Helper()
	r.steps = append(r.steps, s)
	r.cover.add(t, r.history, s)
	r.history.add(s)
	r.look(t)
}

// happen adds what is no operation.
func (r *recorder) happen(t *testing.T, s step) {
	t.Helper()
	state, err := s.happen(r.cast, r.states[s.On])
	require.NoError(t, err)
	s.State = state
	r.add(t, s)
}

func (r *recorder) pass(t *testing.T, l *limiter, ms int64) {
	t.Helper()
	ms = (ms + goldenTick - 1) / goldenTick * goldenTick
	r.happen(t, step{On: l.name, Do: "pass", MS: ms})
}

// stepAside lets time pass until nothing ends at the moment of the step, and
// nothing that it may date to now is as old as something else.
func (r *recorder) stepAside(t *testing.T, s step) {
	t.Helper()
	intervals := r.operation(t.Context(), s, paper).intervals
	for _, l := range r.w.limiters {
		if !slices.Contains(s.involved(), l.name) {
			continue
		}
		for r.onEdge(l.state, append(intervals, l.state.interval())) {
			r.pass(t, l, goldenTick)
		}
	}
}

func (r *recorder) onEdge(s *state, intervals []int64) bool {
	for _, edge := range s.edges(paper.base, intervals...) {
		if edge.from == paper.base {
			return true
		}
	}
	for _, p := range s.pairs {
		now := slices.ContainsFunc(p.rows, func(r row) bool { return r.at.from == paper.base })
		future := slices.ContainsFunc(p.rows, func(r row) bool { return r.at.from > paper.base })
		if now && future {
			return true
		}
	}
	return false
}

// lose has a part of a limiter get lost.
func (r *recorder) lose(t *testing.T, l *limiter) {
	t.Helper()
	var parts []step
	if l.state.config != nil {
		parts = append(parts, step{Do: "lose the configuration"})
	}
	if _, ok := l.state.config["keepAliveTime"]; ok {
		parts = append(parts, step{Do: "lose the keep-alive time"})
	}
	for _, id := range r.clients() {
		p := l.state.pairs[id]
		if p.hasValue {
			parts = append(parts, step{Do: "lose the value", Client: cmp.Or(id, sharedPair)})
		}
		if len(p.rows) > 0 {
			parts = append(parts, step{Do: "lose the permits", Client: cmp.Or(id, sharedPair)})
		}
	}
	if len(parts) == 0 {
		return
	}
	s := slices.MinFunc(parts, func(a, b step) int { return r.cover.counts[a.Do] - r.cover.counts[b.Do] })
	s.On = l.name
	r.happen(t, s)
}

// hasten dates a row in the future, as a peer with a fast clock does.
func (r *recorder) hasten(t *testing.T, l *limiter) {
	t.Helper()
	var ids []string
	for _, id := range r.clients() {
		if len(l.state.pairs[id].rows) > 0 {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return
	}
	id := ids[r.w.rnd.IntN(len(ids))]
	if own := r.pairID(l); slices.Contains(ids, own) {
		id = own
	}
	r.happen(t, step{On: l.name, Do: "hasten the newest row", Client: cmp.Or(id, sharedPair), MS: 6 * goldenTick})
}

// pairID returns the id of the pair that a limiter's peers have.
func (r *recorder) pairID(l *limiter) string {
	if l.state.config["type"] == "1" {
		return r.actors[0].id
	}
	return ""
}

// miscount leads to what releases that take rows for permits get wrong, as the
// random turns do; lost is one of the two ways there.
func (r *recorder) miscount(t *testing.T, kind string, lost bool) {
	t.Helper()
	const rate = 20
	l := r.w.limiters[0]
	java := r.actors[r.w.rnd.IntN(2)]
	cfg := rateConfig{kind: kind, rate: rate, interval: 60 * second}
	do := func(who *actor, operation string, n, rate int64) {
		args := arguments{permits: n, rate: cfg}
		args.rate.rate = rate
		r.operate(t, who, l, operation, args)
	}
	if kind == "1" {
		java = r.actors[0]
	}
	do(java, "delete", 0, 0)
	do(java, "unlink", 0, 0)
	if state := l.state; len(state.pairs[""].rows) > 0 || state.pairs[""].hasValue {
		r.pass(t, l, cfg.interval+goldenTick) // 3.12 leaves the value behind
	}
	do(java, "trySetRate", 0, rate)
	do(r.pick(r.peers(l)), "tryAcquire", 1, 0)
	r.pass(t, l, cfg.interval/2)
	if lost {
		do(r.pick(r.peers(l)), "tryAcquire", rate-1, 0)
		r.happen(t, step{On: l.name, Do: "lose the value", Client: cmp.Or(r.pairID(l), sharedPair)})
		do(java, "availablePermits", 0, 0)
	} else {
		do(r.pick(r.peers(l)), "tryAcquire", rate/2-1, 0)
		do(java, "unlink", 0, 0)
		do(java, "trySetRate", 0, rate/2)
	}
	r.pass(t, l, cfg.interval/2+goldenTick)
	do(java, "tryAcquire", 1, 0)
	do(r.pick(r.peers(l)), "tryAcquire", rate/4, 0)
	do(r.pick(r.peers(l)), "availablePermits", 0, 0)
}

// giveBack has permits of both sides given back one by one.
func (r *recorder) giveBack(t *testing.T) {
	t.Helper()
	l := r.w.limiters[1]
	cfg := rateConfig{kind: "0", rate: 20, interval: 60 * second}
	r.operate(t, r.named("go1"), l, "setRate", arguments{rate: cfg})
	for _, who := range []string{"java1", "go1", "go2", "java2"} {
		r.operate(t, r.named(who), l, "tryAcquire", arguments{permits: 4})
	}
	r.pass(t, l, 10*second)
	for _, who := range []string{"go1", "go2", "go1", "go1"} {
		r.operate(t, r.named(who), l, "release", arguments{permits: 3})
	}
	for _, who := range []string{"java1", "go1", "java1", "java2"} {
		r.operate(t, r.named(who), l, "tryAcquire", arguments{permits: 3})
	}
	r.pass(t, l, cfg.interval)
	r.operate(t, r.named("java1"), l, "availablePermits", arguments{})
}
