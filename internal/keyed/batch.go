package keyed

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/limit"
)

// batch is requests for one key, which gather until a flight takes them, and then wait for the answer.
type batch struct {
	lane.Batch

	queues *Queues
	lane   *lane.Lane
	key    string

	*sync.Mutex            // guards what follows, and the requests; batches that were one share it; it is taken before a lane's
	gathers     bool       // it has requests, and is counted in
	taken       bool       // no more may come
	wave        *lane.Wave // of the flight that will take them; nil if callers can't wait on it
	requests    []*request
	cancelled   int // how many of the requests have no caller any more

	call    lane.Call
	try     *Try
	outcome lane.Outcome
	short   error // why grants do not count
	err     error
}

type request struct {
	lane.Pending

	*sync.Mutex                 // its batch's
	ctx         context.Context // for the Redis client's hooks, if the request goes by itself
	batch       *batch
	permits     int64
	upTo        bool // as many as are free, at most permits
	answer      lane.Result
}

// send adds a request to those that gather, or sends it, within its time if that is timed, if nothing is under way.
func (g *Queues) send(key string, r *request, timed bool) error {
	l := g.Lanes.To(r.ctx, key)
	b, gathers, err := g.lock(l, key)
	if err != nil {
		return err
	}
	alone := b.join(r, gathers, timed)
	r.Unlock()
	if alone != nil {
		l.SendOne(r.ctx, alone, timed)
	}
	return nil
}

// join adds a request to a locked batch, and makes a flight ask for that unless it gathers already. It returns the call that
// the caller must send itself, if there is one.
func (b *batch) join(r *request, gathers, timed bool) (alone *lane.Call) {
	r.Mutex, r.batch, b.requests = b.Mutex, b, append(b.requests, r)
	switch {
	case gathers:
	case b.lane.TryReserve():
		alone, _ = b.next()
		return alone
	default:
		b.wave = b.lane.Ready(b)
	}
	r.WaitOn(b.wave)
	if timed {
		b.lane.EndBy(b.wave, r.Last)
	}
	if b.queues.Lanes.Closed() {
		b.fail() // Close may have looked for it too early
	}
	return nil
}

// lock locks the batch that gathers for a key, and makes one if none does: then gathers is false.
func (g *Queues) lock(l *lane.Lane, key string) (b *batch, gathers bool, err error) {
	for {
		b = g.gathering.GetOrMake(key, func(*batch) *batch {
			return &batch{queues: g, lane: l, key: key, Mutex: new(sync.Mutex)}
		})
		b.Lock()
		switch {
		case b.taken:
		case b.lane != l: // the key's master is another by now
			g.gathering.Remove(key, b)
		case b.gathers && !g.Lanes.Closed():
			return b, true, nil
		case b.gathers:
			b.Unlock()
			return nil, false, limit.ErrClosed
		default:
			if err = g.Lanes.Begin(); err == nil {
				b.gathers = true
				return b, false, nil
			}
			b.take()
			b.Unlock()
			return nil, false, err
		}
		b.Unlock()
	}
}

// take ends the gathering of a batch.
func (b *batch) take() {
	b.taken = true
	b.queues.gathering.Remove(b.key, b)
}

// Close fails the requests that no flight has taken.
func (b *batch) Close() {
	b.Lock()
	defer b.Unlock()
	b.fail()
}

func (b *batch) fail() {
	if b.taken {
		return
	}
	b.err = limit.ErrClosed
	for _, r := range b.requests {
		if r.State == lane.Gathered {
			r.MarkAnswered(nil)
		}
	}
	b.requests = nil
	b.take()
	b.queues.Lanes.End()
}

// cancel forgets requests whose callers have gone before a flight took them, when half of a key's are such
// requests: no flight leaves while a server hangs.
func (g *Queues) cancel(r *request) {
	r.Lock()
	defer r.Unlock()
	b := r.batch
	if b.taken {
		return
	}
	if b.cancelled++; 2*b.cancelled > len(b.requests) {
		b.requests = slices.DeleteFunc(b.requests, func(r *request) bool { return r.State != lane.Gathered })
		b.cancelled = 0
	}
}

// NextCall makes a call of the requests. Those for which it has no room gather on.
func (b *batch) NextCall(*lane.Lane, time.Time) (c *lane.Call, more bool) {
	b.Lock()
	defer b.Unlock()
	return b.next()
}

func (b *batch) next() (c *lane.Call, more bool) {
	g := b.queues
	if b.err != nil {
		return nil, false // closed
	}
	fit, looked := 0, 0
	for ; looked < min(len(b.requests), lane.MaxRequests); looked++ {
		r := b.requests[looked]
		if r.State != lane.Gathered {
			b.cancelled--
			continue
		}
		if !b.add(r) {
			break
		}
		b.requests[fit] = r
		fit++
	}
	sent, rest := b, b.requests[looked:]
	if more = len(rest) > 0; more {
		sent = &batch{Batch: b.Batch, queues: g, key: b.key, Mutex: b.Mutex, taken: true, requests: b.requests[:fit:fit]}
		b.Batch, b.wave, b.requests = lane.Batch{}, nil, rest
	} else {
		b.requests = b.requests[:fit]
		b.take()
	}
	switch {
	case fit > 0 && more:
		g.Lanes.Count(1)
	case fit == 0 && !more:
		g.Lanes.End()
	}
	if fit == 0 {
		return nil, more
	}
	for _, r := range sent.requests {
		r.State, r.batch, r.Batch = lane.Sent, sent, &sent.Batch
	}
	c = &sent.call
	c.Owner, c.Requests, c.Repeat = sent, fit, g.rule.Repeat
	if fit == 1 {
		c.Ctx = sent.requests[0].ctx
	}
	return c, more
}

// Prepare makes the script's call.
func (b *batch) Prepare(c *lane.Call) {
	b.try = b.queues.rule.Ask(b.key, &b.Batch)
	c.Call = b.try.Call
}

// Progressed lets the batch's callers wait on.
func (b *batch) Progressed() {
	b.Lock()
	defer b.Unlock()
	b.Batch.Progressed()
}

// add adds a request to the call, or returns false if there is no room.
func (b *batch) add(r *request) bool {
	switch {
	case b.Count > 0 && r.permits > b.queues.rule.Most-b.Sum:
		return false
	case r.upTo:
		return b.AddUpTo(r.permits)
	default:
		return b.Add(r.permits, false, 0)
	}
}

// OnReply passes the result to the callers, unless another call must be made, and gives back permits granted to those
// who have gone.
func (b *batch) OnReply(c *lane.Call) (again bool) {
	g := b.queues
	b.short = c.Short
	b.outcome, b.err = b.try.Read(c.Outcome())
	if next := b.try.Next; next != nil {
		b.try, c.Call = next, next.Call
		return true
	}
	answers := make([]lane.Result, len(b.requests))
	if b.err == nil {
		answers = b.Results(answers[:0], b.outcome)
	}
	var unwanted, doubtful int64
	b.Lock()
	for i, r := range b.requests {
		if i > 0 && i%lane.MaxWalk == 0 {
			b.Unlock() // others may have the lock for a moment
			b.Lock()
		}
		switch {
		case r.State == lane.Sent:
			r.answer = answers[i]
			if b.short != nil {
				unwanted += r.answer.Taken
			}
			r.MarkAnswered(c.Wave)
		case errors.Is(b.err, limit.ErrUnknownOutcome) && !r.upTo:
			doubtful += r.permits
		default:
			unwanted += answers[i].Taken
		}
	}
	if unwanted == 0 {
		g.Lanes.End()
	}
	b.Unlock()
	if doubtful > 0 {
		g.givenUp(doubtful, b.err)
	}
	if unwanted > 0 {
		go func() {
			defer g.Lanes.End()
			if err := b.outcome.GiveBack(context.Background(), unwanted); err != nil {
				g.givenUp(unwanted, err)
			}
		}()
	}
	return false
}
