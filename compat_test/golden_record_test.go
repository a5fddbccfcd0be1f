package compat_test

import (
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

const traceSteps = 300 // at least

// recorder draws a history and has it played by Redisson and this module. Only the seed and the outcomes decide the draws.
type recorder struct {
	*stage
	drawer

	t          *testing.T
	h          *history
	steps      []step
	counts     map[string]*tally // by side and operation
	compared   int               // of all
	mismatches int
	miscounted int // steps in which rows were taken for permits
}

// tally is how many operations were compared with the model.
type tally struct{ compared, mismatches int }

func newRecorder(t *testing.T, st *stage, draw drawer) *recorder {
	t.Helper()
	return &recorder{stage: st, drawer: draw, t: t, h: newHistory(st.cast), counts: make(map[string]*tally)}
}

func recordTrace(t *testing.T, version string) []step {
	t.Helper()
	driver, err := newJavaDriver(version)
	require.NoError(t, err)
	t.Cleanup(driver.Close)
	url := redistest.Shared(t).URL()
	h := fnv.New64a()
	_, _ = h.Write([]byte(version))
	draw := rand.New(rand.NewPCG(1, h.Sum64()))
	st := newStage(t, traceCast(version), version, redistest.Redis(t), driver.openBy(t, "open", url), driver.openBy(t, "open", url))
	r := newRecorder(t, st, drawer{Rand: draw, tick: goldenTick})
	r.begin()
	for len(r.steps) < traceSteps {
		r.turn(r.IntN(100))
	}
	r.requireNoOtherKeys(t)
	return r.steps
}

// begin leads to what random turns seldom meet.
func (r *recorder) begin() {
	for _, kind := range []string{"0", "1"} {
		for _, lost := range []bool{true, false} {
			r.miscount(kind, lost)
		}
	}
	if r.named("java1").release.KeepsSet {
		r.giveBack()
		r.owe("0")
		r.owe("1")
	}
}

// turn lets something happen to one of the limiters; n, of a hundred, says what.
func (r *recorder) turn(n int) {
	on := pick(r.drawer, limiterNames[:2+2*r.IntN(2)]) // two often, so that much happens to them
	interval := max(r.h.states[on].Interval(), 4*r.tick)
	switch {
	case n < 5:
		r.pass(on, interval/6)
	case n < 8:
		r.pass(on, interval+r.tick)
		r.ask(on)
	case n < 16:
		r.runOut(on)
	case n < 20:
		r.take(on)
		r.lose(on)
		r.ask(on)
	case n < 22:
		r.meddle(on)
		r.ask(on)
	case n < 26:
		r.take(on)
		r.hasten(on)
		r.ask(on)
	default:
		who := pick(r.drawer, r.cast)
		r.draw(who, on, r.operation(who, r.h.states[on]))
	}
}

func (r *recorder) draw(who *actor, on, do string) {
	op := r.op(who, r.h.states[on], do)
	if do != "rename" { // a limiter can't be given twice
		op.To = slices.DeleteFunc(op.To, func(name string) bool { return name == on })
	}
	r.operate(who, on, op)
}

// runOut has permits taken, and some of them run out.
func (r *recorder) runOut(on string) {
	r.take(on)
	r.take(on)
	half := r.h.states[on].Interval() / 2
	r.pass(on, half)
	r.take(on)
	r.pass(on, half+r.tick)
	r.ask(on)
	r.ask(on)
}

// take has a few permits taken of a limiter, which gets a rate if it has none.
func (r *recorder) take(on string) {
	if r.h.states[on].Config == nil {
		rate := r.rate()
		rate.Rate += 5
		r.operate(pick(r.drawer, r.cast), on, model.Op{Do: "trySetRate", Rate: rate})
	}
	permits := 1 + r.Int64N(max(1, r.h.states[on].Rate()/4))
	r.operate(pick(r.drawer, r.peers(on)), on, model.Op{Do: "tryAcquire", Permits: permits})
}

// peers are services that a limiter has one pair for.
func (r *recorder) peers(on string) cast {
	if r.h.states[on].PerClient() {
		return cast{r.named("java1"), r.named("go2")}
	}
	return r.cast
}

func (r *recorder) ask(on string) {
	who, do := pick(r.drawer, r.peers(on)), "tryAcquire"
	if r.IntN(2) == 0 {
		do = pick(r.drawer, slices.DeleteFunc(who.operations(), func(do string) bool { return !aboutPermits[do] }))
	}
	r.draw(who, on, do)
}

// operate does an operation, and checks the result by the model.
func (r *recorder) operate(who *actor, on string, op model.Op) {
	r.t.Helper()
	if op.Rate != nil && who.release != nil && !who.release.TakesTTL {
		without := *op.Rate
		without.KeepAlive = 0
		op.Rate = &without
	}
	s := step{On: on, Who: who.name, Op: op}
	passed := r.stepAside(s)
	if s.Row != nil {
		row := *s.Row
		row.At -= passed
		s.Row = &row
	}
	out, err := r.play(r.t, s, r.h)
	if errors.Is(err, errBetweenTicks) {
		return
	}
	require.NoError(r.t, err)
	s.outcome = out
	key := who.side() + " " + op.Do
	if r.counts[key] == nil {
		r.counts[key] = new(tally)
	}
	r.counts[key].compared++
	r.compared++
	if err := s.check(r.h); err != nil {
		r.counts[key].mismatches++
		r.t.Errorf("after %d steps: %v", len(r.steps), err)
		if r.mismatches++; r.mismatches == maxMismatches {
			r.t.FailNow()
		}
	}
	r.add(s)
}

var errBetweenTicks = errors.New("a history of ticks has no place for the step")

// betweenTicks reports whether a limiter that outlives its window by two seconds came of it.
func (o outcome) betweenTicks() bool {
	return slices.ContainsFunc(append([]*model.State{o.State}, o.Target...), func(s *model.State) bool { return s.Clone().Round(0, goldenTick) > slack })
}

func (r *recorder) add(s step) {
	r.steps = append(r.steps, s)
	if s.Who != "" && slices.ContainsFunc(s.models(r.h), func(o outcome) bool { return o.miscounted }) {
		r.miscounted++
	}
	r.h.add(s)
}

// happen adds a step that is no operation.
func (r *recorder) happen(s step) {
	state, err := s.happen(r.h)
	require.NoError(r.t, err)
	s.State = state
	r.add(s)
}

func (r *recorder) pass(on string, ms int64) {
	ms = (ms + r.tick - 1) / r.tick * r.tick
	r.happen(step{On: on, Op: model.Op{Do: "pass"}, MS: ms})
}

// stepAside lets time pass until nothing ends at the moment of the step, and nothing that it may date to now is as old as
// something else. It returns for how many ms the step's own limiter has.
func (r *recorder) stepAside(s step) (passed int64) {
	if r.drawer.still {
		return 0
	}
	for _, on := range s.involved() {
		intervals := []int64{r.h.states[on].Interval()}
		if s.Rate != nil {
			intervals = append(intervals, s.Rate.Interval)
		}
		for r.h.states[on].OnEdge(0, intervals...) {
			r.pass(on, r.tick)
			if on == s.On {
				passed += r.tick
			}
		}
	}
	return passed
}

func (r *recorder) lose(on string) {
	var parts []step
	state := r.h.states[on]
	add := func(there bool, do, client string) {
		if there {
			parts = append(parts, step{On: on, Op: model.Op{Do: do}, Client: client})
		}
	}
	add(state.Config != nil, "lose the configuration", "")
	_, ok := state.Config["keepAliveTime"]
	add(ok, "lose the keep-alive time", "")
	for _, id := range append([]string{""}, r.clients()...) {
		p := state.Pairs[id]
		add(p.HasValue, "lose the value", id)
		add(len(p.Rows) > 0, "lose the permits", id)
	}
	if len(parts) > 0 {
		r.happen(pick(r.drawer, parts))
	}
}

// meddle has a strange hand change a number of a limiter.
func (r *recorder) meddle(on string) {
	state, id := r.h.states[on], r.pairID(on)
	s := step{On: on, Client: id, MS: pick(r.drawer, []int64{-3, -1, 1, 4})}
	switch p := state.Pairs[id]; {
	case state.Config != nil && r.IntN(3) == 0:
		s.Do, s.MS = "set another rate", 1+r.Int64N(12)
	case p.HasValue && r.IntN(2) == 0:
		s.Do, s.MS = "take the value's end away", 0
	case p.HasValue:
		s.Do = "raise the value"
	default:
		return
	}
	r.happen(s)
}

// hasten dates a row in the future, as a peer with a fast clock does, or in the past.
func (r *recorder) hasten(on string) {
	var ids []string
	for _, id := range append([]string{""}, r.clients()...) {
		if len(r.h.states[on].Pairs[id].Rows) > 0 {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return
	}
	id := pick(r.drawer, ids)
	if own := r.pairID(on); slices.Contains(ids, own) {
		id = own
	}
	ticks := int64(6)
	if r.drawer.still && r.IntN(4) == 0 {
		ticks = -1
	}
	r.happen(step{On: on, Op: model.Op{Do: "hasten the newest row"}, Client: id, MS: ticks * r.tick})
}

// pairID returns the id of the pair that a limiter's peers have.
func (r *recorder) pairID(on string) string {
	if r.h.states[on].PerClient() {
		return r.named("java1").ID
	}
	return ""
}

// miscount leads to what releases that take rows for permits get wrong: a row of many permits is in use when more come back
// than there is room for, since the value was lost or the configuration made anew with a lower rate.
func (r *recorder) miscount(kind string, lost bool) {
	const rate = 20
	on, java := limiterNames[0], pick(r.drawer, r.of("Java"))
	if kind == "1" {
		java = r.named("java1")
	}
	do := func(who *actor, do string, n, rate int64) {
		op := model.Op{Do: do, Permits: n}
		if rate > 0 {
			op.Rate = &model.Rate{Type: kind, Rate: rate, Interval: 12 * r.tick}
		}
		r.operate(who, on, op)
	}
	peer := func() *actor { return pick(r.drawer, r.peers(on)) }
	do(java, "delete", 0, 0)
	do(java, "unlink", 0, 0)
	if p := r.h.states[on].Pairs[""]; p.HasValue || len(p.Rows) > 0 {
		r.pass(on, 13*r.tick) // 3.12 leaves the value behind
	}
	do(java, "trySetRate", 0, rate)
	do(peer(), "tryAcquire", 1, 0)
	r.pass(on, 6*r.tick)
	if lost {
		do(peer(), "tryAcquire", rate-1, 0)
		r.happen(step{On: on, Op: model.Op{Do: "lose the value"}, Client: r.pairID(on)})
		do(java, "availablePermits", 0, 0)
	} else {
		do(peer(), "tryAcquire", rate/2-1, 0)
		do(java, "unlink", 0, 0)
		do(java, "trySetRate", 0, rate/2)
	}
	r.pass(on, 7*r.tick)
	do(java, "tryAcquire", 1, 0)
	do(peer(), "tryAcquire", rate/4, 0)
	do(peer(), "availablePermits", 0, 0)
}

func (r *recorder) giveBack() {
	on := limiterNames[1]
	each := func(do string, permits int64, names ...string) {
		for _, name := range names {
			r.operate(r.named(name), on, model.Op{Do: do, Permits: permits})
		}
	}
	rate := &model.Rate{Type: "0", Rate: 20, Interval: 12 * r.tick}
	r.operate(r.named("go1"), on, model.Op{Do: "setRate", Rate: rate})
	each("tryAcquire", 4, "java1", "go1", "go2", "java2")
	r.pass(on, 2*r.tick)
	each("release", 3, "go1", "go2", "go1", "go1")
	each("tryAcquire", 3, "java1", "go1", "java1", "java2")
	r.pass(on, rate.Interval)
	each("availablePermits", 0, "java1")
}

// owe has a reservation cost more than is free, and both sides meet the debt, until Redisson forgets it; another costs less.
func (r *recorder) owe(kind string) {
	on, java, goes := limiterNames[1], r.named("java1"), r.named("go2") // of one id
	rate := &model.Rate{Type: kind, Rate: 20, Interval: 12 * r.tick}
	each := func(do string, permits int64, all ...*actor) {
		for _, who := range all {
			if who.release == nil || !who.release.Lacks(do) {
				r.operate(who, on, model.Op{Do: do, Permits: permits})
			}
		}
	}
	reserve := func(permits, used int64) {
		each("tryAcquire", permits, goes)
		rows := r.h.states[on].Pairs[map[string]string{"1": goes.ID}[kind]].Rows
		row := rows[slices.IndexFunc(rows, func(row model.Row) bool { return numberOf(row) == r.h.last })]
		each("tryAcquire", 1, java)
		r.operate(goes, on, model.Op{Do: "settle", Row: &row, Permits: permits, Used: used})
	}
	r.operate(goes, on, model.Op{Do: "setRate", Rate: rate})
	reserve(4, 1)
	reserve(4, 25)
	each("availablePermits", 0, java, goes)
	each("tryAcquire", 1, java, goes)
	each("release", 2, java)
	r.pass(on, rate.Interval)
	each("tryAcquire", 5, java, goes)
	reserve(4, 40)
	for _, do := range []string{"updateRate", "setRateArgs"} {
		if !java.release.Lacks(do) {
			r.operate(java, on, model.Op{Do: do, Rate: rate, Keep: true})
		}
	}
	each("availablePermits", 0, java, goes)
}

// aboutPermits are the operations that look at permits in use.
var aboutPermits = map[string]bool{
	"tryAcquire": true, "tryAcquireTimeout": true, "take": true, "withDefault": true, "release": true, "availablePermits": true,
	"settle": true, "takeUpTo": true,
}
