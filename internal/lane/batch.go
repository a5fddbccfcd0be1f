package lane

import (
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Bounds of one script call, so that none holds the server up.
const (
	MaxRequests = 4096
	MaxRuns     = 128 // of requests for the same number of permits
)

// Batch is requests in the order in which one script call decides them.
type Batch struct {
	Sum   int64 // of the permits of all
	Count int   // of requests
	Line  int   // how many of the first stand in line
	UpTo  bool  // one request, for as many permits as are free, at most Sum

	Mu *sync.Mutex // of the Pendings of the requests

	runs  []Run
	peeks bool      // of its one request, nothing is taken
	heard time.Time // when the server last answered, but not in full; zero: it did not
}

// Progressed has the callers of a batch that takes several calls wait on: the server
// answers.
func (b *Batch) Progressed() {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	b.heard = time.Now()
}

// Run is a number of requests, one after another, for the same permits.
type Run struct {
	Permits int64
	Count   int64
	InLine  bool
}

// Runs returns the requests.
func (b *Batch) Runs() []Run { return b.runs }

// Add appends a request, or tells that the batch has no room for it: it has
// MaxRequests, or would have more runs than MaxRuns less those that are
// reserved.
func (b *Batch) Add(permits int64, inLine bool, reserved int) bool {
	if b.Count == MaxRequests || b.UpTo {
		return false
	}
	last := len(b.runs) - 1
	if last >= 0 && b.runs[last].Permits == permits && b.runs[last].InLine == inLine {
		b.runs[last].Count++
	} else {
		if len(b.runs) >= MaxRuns-reserved {
			return false
		}
		b.runs = append(b.runs, Run{Permits: permits, Count: 1, InLine: inLine})
	}
	if inLine {
		b.Line++
	}
	b.Count++
	b.Sum += permits
	return true
}

// AddUpTo makes the batch one request for as many permits as are free, at most so many:
// as many requests for one permit, to a script. It tells false where there are others.
func (b *Batch) AddUpTo(permits int64) bool {
	if b.Count > 0 {
		return false
	}
	b.runs = append(b.runs, Run{Permits: 1, Count: permits})
	b.Count, b.Sum, b.UpTo = 1, permits, true
	return true
}

// AddMany appends as many requests of one permit each, or tells that there is no
// room; a request for as many as are free it makes larger. Drop takes them off again.
func (b *Batch) AddMany(count int64) bool {
	if b.UpTo {
		b.runs[0].Count += count
		b.Sum += count
		return true
	}
	if b.Count >= MaxRequests || len(b.runs) >= MaxRuns {
		return false
	}
	b.runs = append(b.runs, Run{Permits: 1, Count: count})
	b.Count += int(count)
	b.Sum += count
	return true
}

// Drop takes off what AddMany has added.
func (b *Batch) Drop(count int64) {
	b.Sum -= count
	if b.UpTo {
		b.runs[0].Count -= count
		return
	}
	b.runs = b.runs[:len(b.runs)-1]
	b.Count -= int(count)
}

// Reset empties the batch and keeps its room.
func (b *Batch) Reset() { *b = Batch{runs: b.runs[:0]} }

// Args appends the requests as scripts take them, run-length coded: permits,
// count, permits, count...; to a script that is to change nothing, permits alone.
func (b *Batch) Args(all []any) []any {
	if b.peeks {
		return append(all, script.Number(b.Sum))
	}
	for _, r := range b.runs {
		all = append(all, script.Number(r.Permits), script.Number(r.Count))
	}
	return all
}

// Outcome is what a script answers to a batch.
type Outcome struct {
	Limit, Free, Taken int64 // Free: before the batch
	Reset              time.Duration
	Waits              []int64 // ms, for each refused run that has one
}

// Answer is what a request is told.
type Answer struct {
	Decision limit.Decision
	Exceeds  bool // more than the limit; never where that is 0, which refuses all
	AtLeast  bool // RetryAfter is a lower bound: the script looked no further
	Unasked  bool // refused for another before it in the line
}

// Answers appends what each request is told, in order. It walks the requests as
// the script did: walking with what was taken as the free permits gives the same
// grants as walking with what was free, since each granted request fits in what
// is left of it, and none that was refused does.
func (b *Batch) Answers(all []Answer, o Outcome) []Answer {
	if b.UpTo {
		return append(all, o.upTo(b.Sum))
	}
	left, free, waits := o.Taken, o.Free, o.Waits
	blocked := false
	for _, r := range b.runs {
		var wait time.Duration
		atLeast, asked := false, false
		for range r.Count {
			a := Answer{Decision: limit.Decision{Limit: o.Limit, ResetAfter: o.Reset}}
			switch {
			case r.Permits <= left && (!r.InLine || !blocked):
				left -= r.Permits
				free -= r.Permits
				a.Decision.Granted = true
			case r.Permits > o.Limit && o.Limit > 0:
				a.Exceeds = true
			case r.InLine && blocked:
				a.Unasked = !asked
				a.Decision.RetryAfter, a.AtLeast = wait, atLeast
			default:
				if !asked {
					asked = true
					if len(waits) > 0 {
						wait, atLeast = script.Millis(max(waits[0], -waits[0])), waits[0] < 0
						waits = waits[1:]
					}
				}
				blocked = blocked || r.InLine
				a.Decision.RetryAfter, a.AtLeast = wait, atLeast
			}
			a.Decision.Remaining = max(0, free)
			all = append(all, a)
		}
	}
	return all
}

// upTo is what a request is told that takes as many permits as are free, at most most.
func (o Outcome) upTo(most int64) Answer {
	a := Answer{Decision: limit.Decision{
		Granted: o.Taken > 0, Limit: o.Limit, Remaining: max(0, o.Free-min(o.Taken, most)), ResetAfter: o.Reset,
	}}
	if !a.Decision.Granted && len(o.Waits) > 0 {
		wait := o.Waits[0]
		a.Decision.RetryAfter, a.AtLeast = script.Millis(max(wait, -wait)), wait < 0
	}
	return a
}
