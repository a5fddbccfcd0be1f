package compat_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/codec"
)

// step is a line of a trace: an operation of a service on a limiter, or
// something else that happens to it.
type step struct {
	On  string `json:"on"`            // the limiter
	Who string `json:"who,omitempty"` // the service; nobody does what just happens
	Do  string `json:"do"`            // an operation, or one of the happenings

	// What an operation is called with; times are milliseconds from now.
	Permits int64       `json:"permits,omitempty"`
	Rate    *goldenRate `json:"rate,omitempty"`
	Keep    bool        `json:"keepState,omitempty"`
	TTL     int64       `json:"ttl,omitempty"`
	At      int64       `json:"at,omitempty"`
	To      string      `json:"to,omitempty"`
	Held    bool        `json:"held,omitempty"` // the handle has been refused lately

	// What else there is to say of what happens.
	MS     int64  `json:"ms,omitempty"`
	Client string `json:"client,omitempty"`

	outcome
}

// outcome is what came of a step.
type outcome struct {
	Answer string    `json:"answer,omitempty"`
	Times  []int64   `json:"times,omitempty"` // that are part of the answer
	State  snapshot  `json:"state"`
	Target *snapshot `json:"target,omitempty"` // the state of the other limiter, where it has to do with the step

	miscounted bool // by the model: rows were taken for permits
}

type goldenRate struct {
	Type      string `json:"type"`
	Rate      int64  `json:"rate"`
	Interval  int64  `json:"interval"`
	KeepAlive int64  `json:"keepAlive"`
}

// text tells all there is to compare.
func (o outcome) text() string {
	text, err := json.Marshal(o)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// involved returns the limiters that the step may change.
func (s step) involved() []string {
	if s.To != "" && s.To != s.On {
		return []string{s.On, s.To}
	}
	return []string{s.On}
}

// outcome tells an answer and the states after it.
func (b beat) outcome(got answer, state func(name string) *state, s step) (outcome, error) {
	out := outcome{Answer: got.text}
	var errs []error
	for _, at := range got.times {
		ms, err := b.duration(at.from)
		errs = append(errs, err)
		out.Times = append(out.Times, ms)
	}
	for i, name := range s.involved() {
		told, err := b.snapshot(state(name))
		errs = append(errs, err)
		if i == 0 {
			out.State = told
		} else {
			out.Target = &told
		}
	}
	return out, errors.Join(errs...)
}

// goldenOperations are the kinds of operations, as traces call them, that one
// side has.
func goldenOperations(who *actor) (operations []string) {
	for _, k := range kinds {
		switch {
		case who.redisson == nil && k.kind == "tryAcquireTimeout":
			operations = append(operations, "take", "withDefault")
		case who.redisson == nil:
			operations = append(operations, k.kind)
		case k.kind == "rename":
			operations = append(operations, "unlink")
		case !who.redisson.lacks(k.kind):
			operations = append(operations, k.kind)
		}
	}
	return operations
}

// newStep returns the step that an operation with these arguments is. at is
// when an expireAt is, from now.
func newStep(who *actor, on, operation string, args arguments, at time.Duration) step {
	s := step{On: on, Who: who.name, Do: operation}
	rate := &goldenRate{args.rate.kind, args.rate.rate, args.rate.interval, args.rate.keepAlive}
	if who.redisson != nil && !who.redisson.takesTTL {
		rate.KeepAlive = 0
	}
	switch operation {
	case "tryAcquire", "take":
		s.Permits, s.Held = args.permits, args.held && who.redisson == nil
	case "tryAcquireTimeout", "release":
		s.Permits = args.permits
	case "withDefault":
		s.Permits, s.Rate = args.permits, rate
	case "trySetRate", "setRate":
		s.Rate = rate
	case "setRateArgs", "updateRate":
		s.Rate, s.Keep = rate, args.keep
	case "expire":
		s.TTL = args.ttl.Milliseconds()
	case "expireAt":
		s.At = at.Milliseconds()
	case "rename":
		s.To = args.to.name
	}
	return s
}

// operation returns the step's operation of the service on these limiters.
func (s step) operation(ctx context.Context, who *actor, l, to *limiter, b beat) *operation {
	op := &operation{kind: s.Do}
	if s.Do == "take" || s.Do == "withDefault" {
		op.kind = "tryAcquireTimeout"
	}
	args := arguments{
		permits: s.Permits, keep: s.Keep, held: s.Held, other: s.Do == "take", to: to,
		ttl: time.Duration(s.TTL) * time.Millisecond, at: time.UnixMilli(b.base + s.At),
	}
	if s.Rate != nil {
		args.rate = rateConfig{s.Rate.Type, s.Rate.Rate, s.Rate.Interval, s.Rate.KeepAlive}
	}
	if who.redisson != nil {
		javaOperation(ctx, op, who, l, args)
	} else {
		goOperation(ctx, op, who, l, args)
	}
	return op
}

// paper is the time at which models reckon.
var paper = beat{base: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}

// models returns what the step may come to by the model of who does it. An
// error says that the case is none that traces may hold.
func (s step) models(c *cast, before map[string]snapshot, number uint64) ([]outcome, error) {
	who := c.named(s.Who)
	limiters := make(map[string]*limiter)
	for _, name := range limiterNames {
		limiters[name] = &limiter{name: name}
	}
	now := span{paper.base, paper.base}
	var outcomes []outcome
	for _, may := range s.operation(context.Background(), who, limiters[s.On], limiters[s.To], paper).may {
		states := make(map[string]*state)
		for _, name := range limiterNames {
			state, err := paper.state(before[name], c)
			if err != nil {
				return nil, err
			}
			states[name] = state
		}
		call := &call{state: states[s.On], second: states[s.On], who: who, now: now}
		if s.To != "" {
			call.second = states[s.To]
		}
		answer, given := may(call)
		if call.unsure {
			return nil, fmt.Errorf("%s of %s has no certain outcome", s.Do, s.Who)
		}
		if !given {
			continue
		}
		out, err := paper.outcome(answer, func(name string) *state {
			for _, p := range states[name].pairs {
				for i, r := range p.rows {
					if r.member == "" {
						p.rows[i].member = who.newMember(number, r.permits)
					}
				}
			}
			return states[name]
		}, s)
		if err != nil {
			return nil, err
		}
		out.miscounted = call.miscounted
		outcomes = append(outcomes, out)
	}
	return outcomes, nil
}

// newMember returns the normal member that the service writes.
func (a *actor) newMember(number uint64, permits int64) string {
	if a.redisson != nil {
		return normalMember(a.layout, "", false, number, permits)
	}
	tag := ""
	if markLength[a.layout] > 0 {
		tag = a.name
	}
	return normalMember(a.layout, tag, a.layout == codec.LayoutC, number, permits)
}

// happen returns the state after something that is no operation.
func (s step) happen(c *cast, before snapshot) (snapshot, error) {
	state, err := paper.state(before, c)
	if err != nil {
		return snapshot{}, err
	}
	id := s.Client
	if id == sharedPair {
		id = ""
	}
	p := state.pairs[id]
	if p == nil {
		return snapshot{}, fmt.Errorf("client %q is unknown", id)
	}
	switch s.Do {
	case "pass":
		state.shift(s.MS, span{paper.base, paper.base})
	case "lose the value":
		p.delValue()
	case "lose the permits":
		p.setRows(nil)
	case "lose the configuration":
		state.config, state.configEnd = nil, never
	case "lose the keep-alive time":
		delete(state.config, "keepAliveTime")
	case "hasten the newest row":
		at := paper.base + s.MS
		p.rows[len(p.rows)-1].at = span{at, at}
	default:
		return snapshot{}, fmt.Errorf("%q is unknown", s.Do)
	}
	return paper.snapshot(state)
}

// history is where a trace has come to.
type history struct {
	states map[string]snapshot // by limiter
	last   uint64              // number of a member
	wrote  map[uint64]string   // who wrote the member of that number
}

// add goes on to after a step.
func (h *history) add(s step) {
	if h.states == nil {
		h.states, h.wrote = make(map[string]snapshot), make(map[uint64]string)
	}
	h.states[s.On] = s.State
	ids := s.State.ids()
	if s.Target != nil {
		h.states[s.To] = *s.Target
		ids = append(ids, s.Target.ids()...)
	}
	for _, id := range ids {
		if n := numberOf(id); n > h.last {
			h.last = n
			h.wrote[n] = s.Who
		}
	}
}
