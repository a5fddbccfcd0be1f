package engine

import (
	"context"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/refusal"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// maxPermits is the most that one member holds: Redisson packs them in 32 bits.
const maxPermits = 1<<32 - 1

// maxMembers is how many requests one script call takes if each gets a member of its own, so
// that no call occupies the server for long.
const maxMembers = 128

// batch is the requests that one script call decides, in the order in which they are served.
type batch struct {
	lane.Batch
	call lane.Call

	queue         *queue
	rules         redisson.Rules
	limiter       *Limiter // of the handle whose request comes first
	requests      []*request
	own           bool  // each request gets a member of its own
	reserved      int   // how many runs are kept free for other requests now
	filling       bool  // from the line, whose order counts
	mixed         bool  // requests in line have other defaults than the first: none is used
	pass          bool  // of the line
	reserves      bool  // there are reservations in it
	held          bool  // one of them has a hold
	exact         bool  // one of them asks by a handle that is WithExact
	upToAlone     bool  // it is one request for as many permits as are free, whose member is its own
	changes       int64 // of the limiter before: see queue.changes
	tally         tally // before
	asked         int64 // permits, those ahead too
	figures       bool
	audit         bool
	checksDefault bool // the fallback with the default that the limiter has
	fallback      string
	ahead         prefetch // permits that are taken ahead
	redo          redo

	member  []byte        // the call's first member, permits for the sum of all requests; nil without members
	shared  *merge.Member // of it, once some of its permits are to go back
	word    any           // the member in a command
	sent    time.Time
	results []lane.Result
	joint   script.Joint
}

// batches are unused batches, with room for small ones.
var batches sync.Pool

func newBatch(q *queue) *batch {
	b, ok := batches.Get().(*batch)
	if !ok {
		b = &batch{}
	}
	b.queue, b.rules = q, q.engine.rules
	b.own = !b.rules.Merge && !b.rules.KeepsNoMembers()
	return b
}

// free makes the batch reusable, unless it was large.
func (b *batch) free() {
	if b.Count > lane.MaxRuns {
		return
	}
	clear(b.requests)
	clear(b.results)
	b.Reset()
	*b = batch{Batch: b.Batch, requests: b.requests[:0], results: b.results[:0]}
	batches.Put(b)
}

// add appends a request; it returns false if the request must wait for another batch.
func (b *batch) add(r *request, inLine bool) bool {
	mixed := b.mixed
	switch {
	case len(b.requests) == 0:
		b.limiter, b.fallback = r.limiter, r.limiter.Fallback
	case b.filling:
		mixed = mixed || b.fallback != r.limiter.Fallback
	case !b.accepts(r):
		return false
	}
	own := b.own || r.Reserve
	switch {
	case mixed && b.queue.line.unmixed, own && len(b.requests) >= maxMembers, b.Sum+r.Permits > maxPermits:
		return false
	case r.UpTo:
		if !b.AddUpTo(r.Permits) {
			return false
		}
	case !b.Add(r.Permits, inLine, b.reserved):
		return false
	}
	if b.mixed = mixed; mixed {
		b.fallback = ""
	}
	if r.Reserve {
		b.reserves, b.own, b.rules.Merge = true, true, false
	}
	b.held = b.held || r.Hold > 0
	b.exact = b.exact || r.limiter.Exact
	b.upToAlone = r.UpTo && own
	b.requests = append(b.requests, r)
	b.figures = b.figures || r.Figures
	return true
}

// accepts reports whether a request can share the call, if that has room. It can't with another default
// for the limiter. Reservations have members of their own, so others share a call with them only in a
// line, whose order counts. A request for what is free that has a member of its own goes alone.
func (b *batch) accepts(r *request) bool {
	if b.mixed || b.upToAlone || r.UpTo && b.own {
		return false
	}
	return b.fallback == r.limiter.Fallback && b.reserves == r.Reserve
}

// bySum reports whether the script decides the batch as one request for the sum.
func (b *batch) bySum() bool { return b.Count == 1 && (b.upToAlone || b.Runs[0].Count == 1) }

// makeCall makes the call that decides the batch. Prepare completes it.
func (b *batch) makeCall() *lane.Call {
	var ctx context.Context
	if b.Count == 1 {
		ctx = b.requests[0].ctx
	}
	// If nothing in Redis would show that a window's batch was decided, the call is not repeated after a lost answer.
	b.call = lane.Call{
		Call: script.Call{Repeat: !b.rules.KeepsNoMembers()}, Owner: b, Requests: len(b.requests), Ctx: ctx, Rider: b.queue.rider(b.limiter),
	}
	return &b.call
}

// Prepare gives the call a new identity.
func (b *batch) Prepare(c *lane.Call) {
	ids := b.queue.engine.ids
	switch {
	case b.rules.KeepsNoMembers():
		b.member = nil // none is kept
	case b.own:
		b.member = ids.Next(make([]byte, 0, 21), len(b.requests))
	default:
		b.member = ids.Next(make([]byte, 0, 21), 1)
	}
	if b.member != nil {
		redisson.SetPermits(b.member, b.Sum)
	}
	b.word = b.member
	b.sent = time.Now()
	l := b.limiter
	if b.fallback != "" {
		b.fallback, b.checksDefault = b.queue.engine.fallback(l, b.sent), l.defaultCheckDue(b.sent)
	}
	keys, overall := b.queue.keysFor(l)
	c.Script, c.Keys, c.Args = lua.Acquire, keys, b
	if flags := b.flags(); overall && b.bySum() && (flags == "" || flags == "a") {
		b.joint = script.Joint{Script: lua.AcquireMany, Args: [2]any{b.word, script.Number(b.Sum)}, Early: flags == ""}
		c.Joint = &b.joint
	}
}

// Progressed lets the batch's callers wait on.
func (b *batch) Progressed() {
	b.queue.lock()
	defer b.queue.unlock()
	b.Batch.Progressed()
}

// Append appends the arguments of the acquire script.
func (b *batch) Append(all []any, a script.Attempt) []any {
	before := len(all)
	age, token := a.Words()
	all = append(all, b.word, script.Number(b.Sum), b.fallback, b.flags(), age, token)
	if !b.bySum() {
		all = b.Args(append(all, b.Line))
	}
	for len(all) > before+1 && all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	if len(all) == before+2 && b.Sum == 1 {
		all = all[:before+1] // each argument costs the server a little
	}
	return all
}

// flags returns the letters that tell the script how to decide.
func (b *batch) flags() string {
	flags := ""
	if b.figures {
		flags += "f"
	}
	if b.audit {
		flags += "a"
	}
	if b.checksDefault {
		flags += "d"
	}
	if b.upToAlone {
		flags += "u"
	}
	flags += b.rules.Flags()
	if b.held {
		flags += b.holds()
	}
	return flags
}

// holds returns the letter of holds and those of the requests, up to the last that differs from the one before.
func (b *batch) holds() string {
	text, length := []byte("h"), 0
	for i, r := range b.requests {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, r.Hold.Milliseconds(), 10)
		if i == 0 || r.Hold != b.requests[i-1].Hold {
			length = len(text)
		}
	}
	return string(text[:length])
}

// redo is why the call of a batch was made again.
type redo struct {
	redraws  redraws
	replaces bool       // the call replaces the limiter's default
	older    limit.Rate // that default
}

// parse reads the script's answer, and what it found of the limiter's state.
func (b *batch) parse(reply any) (o lane.Outcome, found findings, err error) {
	if short, ok := reply.(int64); ok {
		if short != b.Sum && short >= 0 || short == math.MinInt64 {
			return lane.Outcome{}, 0, script.Unexpected(reply)
		}
		o.Taken, o.Interval = max(0, short), time.Duration(b.limiter.interval.Load())
		blocked := false // as in the script, requests in line behind another have no wait
		for _, r := range b.Runs {
			if short < 0 && (!r.InLine || !blocked) {
				o.RetryAfters = append(o.RetryAfters, -short)
			}
			blocked = blocked || r.InLine
		}
		return o, 0, nil
	}
	return b.parseFigures(reply)
}

// parseFigures is parse for an answer with figures.
func (b *batch) parseFigures(reply any) (o lane.Outcome, found findings, err error) {
	numbers, err := script.Integers(reply, 7)
	if err != nil {
		return lane.Outcome{}, 0, err
	}
	o.Limit, o.Free, o.Taken, o.RetryAfters = numbers[0], numbers[1], numbers[2], numbers[7:]
	if o.Taken < 0 || o.Taken > b.Sum {
		return lane.Outcome{}, 0, script.Unexpected(reply)
	}
	o.Interval, o.Reset, o.Keep = script.Millis(numbers[3]), script.Millis(max(0, numbers[4])), script.Millis(max(0, numbers[5]))
	if b.rules.KeepsNoMembers() && len(o.RetryAfters) > 0 {
		o.WindowEnd, o.RetryAfters = o.RetryAfters[0], o.RetryAfters[1:]
	}
	if b.held && len(o.RetryAfters) > 0 {
		o.GrantedAt, o.RetryAfters = o.RetryAfters[0], o.RetryAfters[1:]
	}
	return o, findings(numbers[6]), nil
}

// prefetch is the permits that a batch takes ahead.
type prefetch struct {
	limiter *Limiter // nil if there is no lease
	permits int64
	ends    int            // how often leases had been ended before
	before  refusal.Moment // when it was asked for
}

// grant returns permits that the request at that place was granted, or that were taken ahead.
func (b *batch) grant(place int, permits int64, o lane.Outcome) grant {
	g := grant{permits: permits, sent: b.sent, windowEnd: o.WindowEnd}
	if hold := b.requests[place].Hold; hold > 0 {
		g.hold = Hold{max(0, o.Interval-hold), o.GrantedAt}
	}
	switch {
	case b.member == nil:
	case b.own:
		g.member = redisson.WithPermits(redisson.Later(b.member, place), permits)
	default:
		if b.shared == nil {
			b.shared = merge.NewMember(b.member, o.Taken)
		}
		g.member, g.shared = b.member, b.shared
	}
	return g
}
