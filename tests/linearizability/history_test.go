package linearizability_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/lua"
)

// linearCall is what a caller asks of a limiter.
type linearCall struct {
	name      callName
	limiter   int
	second    int // limiter, of a call for two
	permits   int64
	timeout   time.Duration
	cfg       rratelimiter.Config
	keep      bool          // with KeepState
	byDefault bool          // on a handle that gives the limiter cfg where it has no rate
	pause     time.Duration // before the call
	patience  time.Duration // until its context ends; 0: for ever
	rash      bool          // in place of that, it ends while a request is on its way
	dead      bool          // its context has ended before
}

type callName string

const (
	tryCall       callName = "TryAcquire"
	acquireCall   callName = "Acquire"
	takeCall      callName = "Take"
	allCall       callName = "TryAcquireAll"
	releaseCall   callName = "Release"
	availableCall callName = "AvailablePermits"
	trySetCall    callName = "TrySetRate"
	setCall       callName = "SetRate"
	updateCall    callName = "UpdateRate"
	deleteCall    callName = "Delete"
)

func (c linearCall) String() string {
	keep := ""
	if c.keep {
		keep = ", KeepState"
	}
	text := string(c.name)
	switch c.name {
	case tryCall:
		text += fmt.Sprintf("(%d, %v)", c.permits, c.timeout)
	case acquireCall, takeCall, allCall, releaseCall:
		text += fmt.Sprintf("(%d)", c.permits)
	case trySetCall, setCall, updateCall:
		text += fmt.Sprintf("(%d/%v%s)", c.cfg.Rate, c.cfg.Interval, keep)
	default:
		text += "()"
	}
	if c.byDefault {
		text += fmt.Sprintf(" with default %d/%v", c.cfg.Rate, c.cfg.Interval)
	}
	return text
}

// Outcome is how a call ended.
type outcome string

const (
	done      outcome = "done"
	exceeds   outcome = "ErrPermitsExceedRate"
	noRate    outcome = "ErrNotInitialized"
	cancelled outcome = "cancelled"         // with no word of what came of it
	unknown   outcome = "ErrUnknownOutcome" // the context's end among the causes or not
	unsent    outcome = "ErrUnavailable"    // in time, by a machine that is busy
	failed    outcome = "failed"
)

func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return done
	case errors.Is(err, rratelimiter.ErrUnknownOutcome):
		return unknown
	case errors.Is(err, rratelimiter.ErrUnavailable):
		return unsent
	case errors.Is(err, rratelimiter.ErrPermitsExceedRate):
		return exceeds
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		return noRate
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return cancelled
	}
	return failed
}

// linearAnswer is what a call was answered.
type linearAnswer struct {
	outcome outcome
	err     error
	ok      bool
	free    int64 // of Take and AvailablePermits
	limit   int64
	wait    time.Duration
	reset   time.Duration
}

// record is a call and its answer. Moments are counted, so that of two that
// follow each other the later one is the greater.
type record struct {
	linearCall
	linearAnswer

	number           int
	client, caller   int
	all              func(ctx context.Context) (bool, error) // the call for two
	began, ended     int64
	beganAt, endedAt int64 // ms of a clock that can be told

	tight spell // of the request that most likely carried it
	wide  spell // of all that may have

	final  bool // when all has come to rest
	alone  bool // no other call of its client was waiting meanwhile
	doubts int  // how many of its client's requests went without an answer meanwhile
	open   bool // what came of it is left out
}

func (r *record) String() string {
	answer := string(r.outcome)
	switch {
	case r.open:
		answer = "..."
	case r.outcome == done:
		switch r.name {
		case tryCall, allCall, updateCall, trySetCall, deleteCall:
			answer = fmt.Sprint(r.ok)
		case takeCall:
			answer = fmt.Sprintf("%v, %d of %d left, retry %v, reset %v", r.ok, r.free, r.limit, r.wait, r.reset)
		case availableCall:
			answer = fmt.Sprint(r.free)
		}
	}
	who := fmt.Sprintf("client %d caller %d", r.client, r.caller)
	if r.final {
		who = "at rest"
	}
	return fmt.Sprintf("%-17s %v = %s", who, r.linearCall, answer)
}

// run makes the call and notes what comes of it. rash ends a context while a
// request may be on its way.
func (r *record) run(ctx context.Context, l *rratelimiter.RateLimiter, moments *moments, rash func(context.CancelFunc)) {
	if r.patience > 0 || r.dead {
		ending, cancel := context.WithCancel(ctx)
		defer cancel()
		ctx = ending
		switch {
		case r.dead:
			cancel()
		case r.rash:
			rash(cancel)
		default:
			defer time.AfterFunc(r.patience, cancel).Stop()
		}
	}
	var opts []rratelimiter.RateOption
	if r.keep {
		opts = append(opts, rratelimiter.KeepState())
	}
	r.began, r.beganAt = moments.next()
	switch r.name {
	case tryCall:
		r.ok, r.err = l.TryAcquire(ctx, r.permits, r.timeout)
	case allCall:
		r.ok, r.err = r.all(ctx)
	case acquireCall:
		r.err = l.Acquire(ctx, r.permits)
		r.ok = r.err == nil
	case takeCall:
		d, err := l.Take(ctx, r.permits)
		r.ok, r.free, r.limit, r.wait, r.reset, r.err = d.Granted, d.Remaining, d.Limit, d.RetryAfter, d.ResetAfter, err
	case releaseCall:
		r.err = l.Release(ctx, r.permits)
	case availableCall:
		r.free, r.err = l.AvailablePermits(ctx)
	case trySetCall:
		r.ok, r.err = l.TrySetRate(ctx, r.cfg)
	case setCall:
		r.err = l.SetRate(ctx, r.cfg, opts...)
		r.ok = r.err == nil
	case updateCall:
		r.ok, r.err = l.UpdateRate(ctx, r.cfg, opts...)
	case deleteCall:
		r.ok, r.err = l.Delete(ctx)
	}
	r.ended, r.endedAt = moments.next()
	r.outcome = outcomeOf(r.err)
	if r.timeout > 0 && errors.Is(r.err, rratelimiter.ErrUnavailable) {
		r.outcome = cancelled // it went before its answer came: what it was granted goes back
	}
}

// moments counts the moments of a history.
type moments struct {
	last atomic.Int64
	now  func() int64 // ms of a clock that stands still while something happens, or always
}

func (m *moments) next() (moment, ms int64) { return m.last.Add(1), m.now() }

// linearHistory is what callers did to one limiter; to that of one Client where
// each has its own.
type linearHistory struct {
	about   string
	records []record // as they began
	virtual bool     // the clock is known
	strict  bool     // what cancelled calls took has come back at the end
	phantom bool     // what an attempt took may have been released before its repeat
	start   linearState

	together int // the most requests of one Client for permits that were under way
}

// effectOf returns the effect of a call. It is a loose one where nobody knows
// what came of it, and none where nothing did.
func (h *linearHistory) effectOf(r *record) (e effect, loose, some bool) {
	e = effect{
		call: r.number, permits: r.permits, outcome: r.outcome, ok: r.ok, doubted: r.doubts > 0,
		free: r.free, limit: r.limit, wait: r.wait.Milliseconds(), reset: r.reset.Milliseconds(),
	}
	if h.virtual {
		e.client = r.client
	}
	if r.cfg.Rate > 0 {
		e.rate, e.interval = r.cfg.Rate, r.cfg.Interval.Milliseconds()
	}
	loose = r.open || r.outcome == unknown
	if r.outcome == unsent { // or read in vain
		return e, false, false
	}
	switch r.name {
	case tryCall, acquireCall, takeCall, allCall:
		e.kind = acquireEffect
		if r.unseen() {
			e.kind = unseenEffect
			e.keep = r.outcome == cancelled
			// Where the timeout ended first, what comes of it later is given back.
			e.maybe = r.outcome == unknown && r.timeout > 0
			return e, true, true
		}
		// It may have left the line without having been asked for.
		e.anyhow = r.waits() && r.outcome == done && !r.ok && (!h.virtual || !r.alone)
		if r.name == allCall && !r.ok {
			e.anyhow, e.outcome = true, done // it may be the other limiter's doing
		}
		if e.anyhow && (!h.phantom || r.doubts == 0) {
			return e, false, false
		}
		e.figures = r.name == takeCall && r.outcome == done && r.doubts == 0
		e.times = e.figures && h.virtual
		return e, loose, true
	case releaseCall:
		e.kind = releaseEffect
	case deleteCall:
		e.kind = deleteEffect
	case availableCall:
		e.kind = availableEffect
		if r.final {
			e.kind, e.keep = finalEffect, h.strict
		}
	case trySetCall, setCall, updateCall:
		e.kind = setRateEffect
		e.keep, e.try, e.update = r.keep, r.name == trySetCall, r.name == updateCall
	}
	return e, loose, r.outcome != cancelled // which a call is that was never sent
}

// phantoms is how many attempts of a call a repeat may not have found again,
// since others had released what they took.
func (h *linearHistory) phantoms(r *record, guess guess) int {
	if !h.phantom || guess.found || callScripts[r.name] != lua.Acquire && r.name != allCall {
		return 0
	}
	return min(r.doubts, 2)
}

// callScripts are the scripts that the calls run.
var callScripts = map[callName]*lua.Script{
	tryCall: lua.Acquire, acquireCall: lua.Acquire, takeCall: lua.Acquire, allCall: lua.AcquireAll, releaseCall: lua.Release, availableCall: lua.Available,
	trySetCall: lua.TrySetRate, setCall: lua.SetRate, updateCall: lua.SetRate, deleteCall: lua.Delete,
}

// carriedBy tells whether a request may have carried a call out.
func (r *record) carriedBy(q request) bool {
	if q.client != r.client || q.began < r.began || q.script != callScripts[r.name] {
		return false
	}
	switch r.name {
	case releaseCall, allCall:
		return q.argument == fmt.Sprint(r.permits)
	case trySetCall, setCall, updateCall:
		return q.argument == fmt.Sprint(r.cfg.Rate)
	}
	return true
}

func (r *record) waits() bool { return r.timeout > 0 || r.name == acquireCall }

func (r *record) unseen() bool { return r.outcome == cancelled || r.outcome == unknown }

// prepare notes of each call what the others tell about it, and the requests
// that the clients made for this limiter.
func (h *linearHistory) prepare(requests []request) {
	slices.SortFunc(requests, func(a, b request) int { return cmp.Compare(a.began, b.began) })
	for _, q := range requests {
		together := 0
		for _, other := range requests {
			if q.takes() && other.takes() && other.client == q.client && other.began <= q.began && q.began < other.ended {
				together++
			}
		}
		h.together = max(h.together, together)
	}
	for i := range h.records {
		r := &h.records[i]
		for _, q := range requests {
			if !r.carriedBy(q) {
				continue
			}
			if q.lost && (q.began < r.ended || r.unseen()) {
				r.doubts++
			}
			if q.ended < r.ended || r.unseen() {
				r.wide.add(q)
				// The first that was answered is the one, as far as a call has one.
				if callScripts[r.name] != lua.Acquire || r.waits() || !r.tight.sure {
					r.tight.add(q)
				}
			}
		}
		r.alone = r.waits() && !slices.ContainsFunc(h.records, func(o record) bool {
			return o.number != r.number && o.waits() && o.client == r.client && o.began < r.ended && r.began < o.ended
		})
	}
}

// spell is when requests were on their way.
type spell struct {
	from, to int64
	sure     bool // there is one, and one that was answered
}

func (s *spell) add(q request) {
	if s.to == 0 {
		s.from = q.began
	}
	s.to = max(s.to, q.ended)
	s.sure = s.sure || !q.lost
}

// edge is a call's beginning or end, or a tick of the clock. Moments are doubled,
// so that a tick finds room between two of them.
type edge struct {
	moment int64
	event  porcupine.Event
}

// events returns the history as porcupine takes it, with the clock's ticks
// between the calls, and what may have happened besides.
func (h *linearHistory) events(guess guess) (events []porcupine.Event, loose []effect) {
	var edges []edge
	add := func(e effect, began, ended int64) {
		id := len(edges)
		edges = append(edges,
			edge{began, porcupine.Event{Kind: porcupine.CallEvent, Value: e, Id: id}},
			edge{ended, porcupine.Event{Kind: porcupine.ReturnEvent, Id: id}})
	}
	announce := func(e effect, moment int64) uint64 {
		bit := uint64(1) << len(loose)
		loose = append(loose, e)
		add(effect{kind: announceEffect, call: e.call, loose: bit}, moment, moment)
		return bit
	}
	if h.virtual {
		h.ticks(func(moment, ms int64) { add(effect{kind: tickEffect, now: ms}, 2*moment-1, 2*moment-1) })
	}
	for _, r := range h.records {
		e, isLoose, some := h.effectOf(&r)
		if !some {
			continue
		}
		if when := guess.when(&r); when.to > 0 {
			r.began = when.from
			if !isLoose || when.to > r.ended {
				r.ended = when.to
			}
		}
		for range h.phantoms(&r, guess) {
			phantom := e
			phantom.kind, phantom.keep = phantomEffect, true
			e.loose |= announce(phantom, 2*r.began)
		}
		if isLoose {
			bit := announce(e, 2*r.began)
			if guess.soon > 0 && !r.open {
				last := 2 * (r.ended + guess.soon)
				add(effect{kind: withdrawEffect, call: r.number, loose: e.loose | bit}, last, last)
			}
		} else {
			add(e, 2*r.began, 2*r.ended)
		}
	}
	slices.SortStableFunc(edges, func(a, b edge) int { return cmp.Compare(a.moment, b.moment) })
	events = make([]porcupine.Event, len(edges))
	for i, e := range edges {
		events[i] = e.event
	}
	return events, loose
}

// ticks calls f for each millisecond of the history's clock, with the moment
// before which it came.
func (h *linearHistory) ticks(f func(moment, ms int64)) {
	type reading struct{ moment, ms int64 }
	var readings []reading
	for _, r := range h.records {
		readings = append(readings, reading{r.began, r.beganAt})
		if !r.open {
			readings = append(readings, reading{r.ended, r.endedAt})
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
