// Package linear is a model of a limiter that one call at a time happens to, and asks porcupine whether what many callers were
// answered at once has an order that the model explains.
//
// A call with an unknown outcome may have happened at any time from its beginning on,
// or never. What a call took whose caller has gone may be given back at any time.
package linear

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/anishathalye/porcupine"

	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
)

// A Call is what a caller asks of a limiter.
type Call struct {
	op.Op

	ByDefault bool // on a handle that gives the limiter Config if it has no rate

	Reservation int // that Reserve makes or Settle settles, of Permits; its Hold is shorter than every interval
}

func (c Call) String() string {
	text := c.Op.String()
	if c.ByDefault {
		text += " by default"
	}
	return text
}

// A Record is a call and its answer. Moments are counted: of two, the later has the greater number.
type Record struct {
	Call
	op.Answer

	Claims           string // of a call of several limiters: the permits of each
	Number           int
	Client, Caller   int
	Began, Ended     int64
	BeganAt, EndedAt int64 // ms of a clock that is known

	Final  bool // when all has come to rest
	Doubts int  // how many of its client's requests went without an answer meanwhile

	tight spell // of the request that most likely carried it
	wide  spell // of all that may have
	alone bool  // no other call of its client was waiting meanwhile
	late  bool  // a request that may have carried it was under way when it ended
	later bool  // or began after, and may have been made before
	lost  int   // Doubts, and losses after it ended
	open  bool  // the result is left out
}

func (r *Record) String() string {
	answer := string(r.Outcome)
	switch {
	case r.open:
		answer = "..."
	case r.Outcome == op.Done:
		answer = fmt.Sprintf("%v, %d taken, %d of %d left, retry %v, reset %v", r.OK, r.Taken, r.Free, r.Limit, r.Wait, r.Reset)
	}
	who := fmt.Sprintf("client %d caller %d", r.Client, r.Caller)
	if r.Final {
		who = "at rest"
	}
	return fmt.Sprintf("%-17s %v = %s", who, r.Call, answer)
}

func (r *Record) unseen() bool { return r.Outcome == op.Gone || r.Outcome == op.Unknown }

// mayHaveLeft reports whether the caller waited without success, and its last request may have been answered after it left.
func (r *Record) mayHaveLeft() bool { return r.Waits() && r.Outcome == op.Done && !r.OK && r.later }

// A History is what callers did to one limiter; to one Client's part if each has its own.
type History struct {
	About   string
	Records []Record // as they began
	Virtual bool     // the clock is known
	Strict  bool     // what cancelled calls took has come back at the end
	Phantom bool     // what an attempt took may have been released before its repeat
	Start   State

	Together int // the most requests of one Client for permits that were under way
}

// effectOf returns the effect of a call. It is a loose one if the result is unknown, and none if there is none.
func (h *History) effectOf(r *Record) (e effect, loose, some bool) {
	e = effect{
		call: r.Number, permits: r.Permits, outcome: r.Outcome, ok: r.OK, doubted: r.Doubts > 0,
		free: r.Free, limit: r.Limit, wait: r.Wait.Milliseconds(), reset: r.Reset.Milliseconds(),
	}
	if h.Virtual {
		e.client, e.hold = r.Client, r.Hold.Milliseconds()
	}
	if r.Config.Rate > 0 {
		e.rate, e.interval = r.Config.Rate, r.Config.Interval.Milliseconds()
	}
	loose = r.open || r.Outcome == op.Unknown
	if r.Outcome == op.Unavailable { // or read without success
		return e, false, false
	}
	switch r.Name {
	case op.Peek:
		e.kind, e.figures = peekEffect, r.Limit > 0 && r.Outcome == op.Done
		e.times = e.figures && h.Virtual
		if loose || r.unseen() {
			return e, false, false
		}
	case op.Try, op.Acquire, op.Take, op.UpTo, op.All, op.Reserve:
		return h.acquireEffectOf(r, e, loose)
	case op.Release:
		e.kind = releaseEffect
	case op.Settle:
		e.kind, e.reservation, e.used, e.excess = settleEffect, r.Reservation, r.Used, max(0, r.Used-r.Permits)
		if r.Used == r.Permits && r.Hold == 0 { // which asks Redis nothing
			return e, false, false
		}
	case op.Reset:
		e.kind = resetEffect
	case op.Delete:
		e.kind = deleteEffect
	case op.Available:
		e.kind = availableEffect
		if r.Final {
			e.kind, e.keep = finalEffect, h.Strict
		}
	case op.TrySet, op.Set, op.Update:
		e.kind = setRateEffect
		e.keep, e.try, e.update = r.Keep, r.Name == op.TrySet, r.Name == op.Update
	}
	return e, loose, r.Outcome != op.Gone // which a call is that was never sent
}

// mates returns what may have been granted, together, to others whose requests shared script calls with a call, if
// answers to them were lost and others released permits before they were answered.
func (h *History) mates(r *Record) (list string) {
	if !h.Phantom || r.Doubts == 0 {
		return ""
	}
	var sums []int64
	for _, o := range h.Records {
		released := func(x Record) bool { return x.Name == op.Release && x.Began < o.Ended && r.Began < x.Ended }
		if o.Number == r.Number || o.Client != r.Client || o.Doubts == 0 || o.Outcome == op.Done && !o.OK || o.Ended < r.Began || r.Ended < o.Began ||
			callScripts[o.Name] != lua.Acquire || len(sums) > 100 || !slices.ContainsFunc(h.Records, released) {
			continue
		}
		took := o.Permits
		if o.Name == op.UpTo && o.Outcome == op.Done {
			took = o.Taken
		}
		for _, sum := range append(slices.Clone(sums), 0) {
			sums = append(sums, sum+took)
			list += fmt.Sprintf("%d ", sum+took)
		}
	}
	return list
}

// acquireEffectOf is effectOf of a call that asks for permits.
func (h *History) acquireEffectOf(r *Record, e effect, loose bool) (_ effect, isLoose, some bool) {
	e.kind, e.mates = acquireEffect, h.mates(r)
	if r.Name == op.Reserve && slices.ContainsFunc(h.Records, func(o Record) bool { return o.Name == op.Settle && o.Reservation == r.Reservation }) {
		e.reservation = r.Reservation // else it is as any other grant
	}
	if e.upTo = r.Name == op.UpTo; e.upTo {
		e.taken = r.Taken
	}
	if r.unseen() {
		e.kind = unseenEffect
		e.keep = r.Outcome == op.Gone
		// If the caller's time ended first, a later grant is given back.
		e.maybe = r.Outcome == op.Unknown
		return e, true, true
	}
	// It may have left the line without having been asked for.
	e.anyhow = r.Waits() && r.Outcome == op.Done && !r.OK && (!h.Virtual || !r.alone)
	if r.Name == op.All && !r.OK {
		e.anyhow, e.outcome = true, op.Done // it may be the other limiter's doing
	}
	if e.anyhow && (!h.Phantom || r.Doubts == 0) {
		// What a request took that was late for its caller is given back.
		e.kind, e.keep = unseenEffect, true
		late := r.Waits() && r.late
		return e, late, late
	}
	e.figures = (r.Name == op.Take || r.Name == op.UpTo || r.Name == op.Reserve) && r.Limit > 0 && r.Outcome == op.Done && r.Doubts == 0
	e.times = e.figures && h.Virtual
	return e, loose, true
}

// phantoms is how many attempts of a call a repeat may not have found again, since others had released what they took.
func (h *History) phantoms(r *Record, guess guess) int {
	charges := callScripts[r.Name] == lua.Acquire || r.Name == op.All || r.Name == op.Settle && r.Used > r.Permits
	if !h.Phantom || guess.found || !charges {
		return 0
	}
	return min(r.Doubts, 2)
}

// callScripts are the scripts that the calls run.
var callScripts = map[op.Name]*lua.Script{
	op.Try: lua.Acquire, op.Acquire: lua.Acquire, op.Take: lua.Acquire, op.UpTo: lua.Acquire, op.Reserve: lua.Acquire, op.All: lua.AcquireAll,
	op.Settle: lua.SettleReservation, op.Release: lua.Release, op.Reset: lua.Reset, op.Delete: lua.Delete,
	op.Peek: lua.Peek, op.Available: lua.Available, op.TrySet: lua.SetRate, op.Set: lua.SetRate, op.Update: lua.SetRate,
}

func (r *Record) carriedBy(q Request) bool {
	if q.Client != r.Client || q.Began < r.Began || q.Script != callScripts[r.Name] {
		return false
	}
	switch r.Name {
	case op.All:
		return q.Argument == r.Claims
	case op.Release:
		return q.Argument == fmt.Sprint(r.Permits)
	case op.Settle:
		return q.Argument == fmt.Sprint(r.Used)
	case op.TrySet, op.Set, op.Update:
		return q.Argument == fmt.Sprint(r.Config.Rate)
	}
	return true
}

// A Request is a script call as a client sent it.
type Request struct {
	Began, Ended int64 // moments
	Client       int
	Script       *lua.Script // Acquire for AcquireMany too
	Argument     string      // the first one; of AcquireAll the permits, of SettleReservation those used
	Limiters     []string
	Lost         bool // no answer came
}

func (q Request) takes() bool { return q.Script == lua.Acquire || q.Script == lua.AcquireAll }

// Prepare notes of each call what the others tell about it, and the requests that the clients made for this limiter.
func (h *History) Prepare(requests []Request) {
	slices.SortFunc(requests, func(a, b Request) int { return cmp.Compare(a.Began, b.Began) })
	for _, q := range requests {
		together := 0
		for _, other := range requests {
			if q.takes() && other.takes() && other.Client == q.Client && other.Began <= q.Began && q.Began < other.Ended {
				together++
			}
		}
		h.Together = max(h.Together, together)
	}
	for i := range h.Records {
		r := &h.Records[i]
		for _, q := range requests {
			if !r.carriedBy(q) {
				continue
			}
			if q.Lost && (q.Began < r.Ended || r.unseen()) {
				r.Doubts++
			}
			if q.Lost {
				r.lost++
			}
			r.late = r.late || q.Began < r.Ended && r.Ended < q.Ended
			r.later = r.later || r.Ended < q.Ended
			if q.Ended < r.Ended || r.unseen() {
				r.wide.add(q)
				// The first that was answered is the one, as far as a call has one.
				if callScripts[r.Name] != lua.Acquire || r.Waits() || !r.tight.sure {
					r.tight.add(q)
				}
			}
		}
		r.alone = r.Waits() && !slices.ContainsFunc(h.Records, func(o Record) bool {
			return o.Number != r.Number && o.Waits() && o.Client == r.Client && o.Began < r.Ended && r.Began < o.Ended
		})
	}
}

// spell is when requests were on their way.
type spell struct {
	from, to int64
	sure     bool // there is one, and one that was answered
}

func (s *spell) add(q Request) {
	if s.to == 0 {
		s.from = q.Began
	}
	s.to = max(s.to, q.Ended)
	s.sure = s.sure || !q.Lost
}

// edge is a call's beginning or end, or a tick of the clock. Moments are doubled, so that a tick finds room between two of them.
type edge struct {
	moment int64
	event  porcupine.Event
}

// events returns the history as porcupine takes it, with the clock's ticks between the
// calls, and what may have happened besides: more than mostLoose, and the check can't decide.
func (h *History) events(guess guess) (events []porcupine.Event, loose []effect) {
	var edges []edge
	add := func(e effect, began, ended int64) {
		id := len(edges)
		edges = append(edges,
			edge{began, porcupine.Event{Kind: porcupine.CallEvent, Value: e, Id: id}},
			edge{ended, porcupine.Event{Kind: porcupine.ReturnEvent, Id: id}})
	}
	announce := func(e effect, moment int64) looseSet {
		bit := only(len(loose) % mostLoose)
		loose = append(loose, e)
		add(effect{kind: announceEffect, call: e.call, loose: bit}, moment, moment)
		return bit
	}
	if h.Virtual {
		h.ticks(func(moment, ms int64) { add(effect{kind: tickEffect, now: ms}, 2*moment-1, 2*moment-1) })
	}
	for _, r := range h.Records {
		if !guess.prompt && r.mayHaveLeft() {
			r.Outcome, r.Doubts = op.Gone, r.lost
		}
		e, isLoose, some := h.effectOf(&r)
		if !some {
			continue
		}
		if when := guess.when(&r); when.to > 0 {
			r.Began = when.from
			if !isLoose || when.to > r.Ended {
				r.Ended = when.to
			}
		}
		for range h.phantoms(&r, guess) {
			phantom := e
			phantom.kind, phantom.keep = phantomEffect, true
			e.loose = e.loose.with(announce(phantom, 2*r.Began))
		}
		if isLoose {
			if guess.soon == 0 && e.loose == (looseSet{}) {
				e.call = 0 // its call does not matter
			}
			bit := announce(e, 2*r.Began)
			if guess.soon > 0 && !r.open {
				last := 2 * (r.Ended + guess.soon)
				add(effect{kind: withdrawEffect, call: r.Number, mates: e.mates, loose: e.loose.with(bit)}, last, last)
			}
		} else {
			add(e, 2*r.Began, 2*r.Ended)
		}
	}
	slices.SortStableFunc(edges, func(a, b edge) int { return cmp.Compare(a.moment, b.moment) })
	events = make([]porcupine.Event, len(edges))
	for i, e := range edges {
		events[i] = e.event
	}
	return events, loose
}

// ticks calls f for each millisecond of the history's clock, with the moment before which it came.
func (h *History) ticks(f func(moment, ms int64)) {
	type reading struct{ moment, ms int64 }
	var readings []reading
	for _, r := range h.Records {
		readings = append(readings, reading{r.Began, r.BeganAt})
		if !r.open {
			readings = append(readings, reading{r.Ended, r.EndedAt})
		}
	}
	slices.SortFunc(readings, func(a, b reading) int { return cmp.Compare(a.moment, b.moment) })
	now := readings[0].ms - 1
	for _, r := range readings {
		for ; now < r.ms; now++ {
			f(r.moment, now+1)
		}
	}
}
