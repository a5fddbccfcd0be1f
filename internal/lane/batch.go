package lane

import (
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Bounds of one script call, so that no call occupies the server for long.
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

	Mu *sync.Mutex // of the requests' Pendings

	runs  []Run
	peeks bool      // it has one request, which takes nothing
	heard time.Time // when the server last answered, but not in full; zero: it did not
}

// Progressed lets the callers of a batch with several calls wait on: the server answers.
func (b *Batch) Progressed() {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	b.heard = time.Now()
}

// Run is a number of consecutive requests for the same number of permits.
type Run struct {
	Permits int64
	Count   int64
	InLine  bool
}

// Runs returns the requests.
func (b *Batch) Runs() []Run { return b.runs }

// Add appends a request. It returns false if the batch has no room: it has MaxRequests, or would
// have more runs than MaxRuns minus reserved.
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

// AddUpTo makes the batch one request for as many permits as are free, up to a bound. To a script
// that is as many requests for one permit. It returns false if the batch has other requests.
func (b *Batch) AddUpTo(permits int64) bool {
	if b.Count > 0 {
		return false
	}
	b.runs = append(b.runs, Run{Permits: 1, Count: permits})
	b.Count, b.Sum, b.UpTo = 1, permits, true
	return true
}

// AddMany appends as many requests of one permit each, and returns false if there is no room. It
// enlarges a request for as many as are free. Drop removes them again.
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

// Drop removes what AddMany has added.
func (b *Batch) Drop(count int64) {
	b.Sum -= count
	if b.UpTo {
		b.runs[0].Count -= count
		return
	}
	b.runs = b.runs[:len(b.runs)-1]
	b.Count -= int(count)
}

// Reset empties the batch and keeps its capacity.
func (b *Batch) Reset() { *b = Batch{runs: b.runs[:0]} }

// Args appends the requests as scripts read them, run-length coded: permits, count, permits, count...
// A script that must change nothing gets the permits alone.
func (b *Batch) Args(all []any) []any {
	if b.peeks {
		return append(all, script.Number(b.Sum))
	}
	for _, r := range b.runs {
		all = append(all, script.Number(r.Permits), script.Number(r.Count))
	}
	return all
}

// Outcome is a script's answer to a batch.
type Outcome struct {
	Limit, Free, Taken int64 // Free: before the batch
	Reset              time.Duration
	Waits              []int64 // ms, for each refused run that has one
}

// Answer is the answer to one request.
type Answer struct {
	Decision limit.Decision
	Taken    int64 // the permits granted
	Exceeds  bool  // more than the limit; never if that is 0, which refuses all
	AtLeast  bool  // RetryAfter is a lower bound: the script looked no further
	Unasked  bool  // refused for another before it in the line
}

// Answers appends the answer to each request, in order. It walks the requests as the script did.
// Starting from the permits taken gives the same grants as starting from the free permits: each
// granted request fits in the rest of them, and no refused one does.
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
				a.Decision.Granted, a.Taken = true, r.Permits
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

// upTo is the answer to a request for as many permits as are free, at most most.
func (o Outcome) upTo(most int64) Answer {
	a := Answer{Taken: min(o.Taken, most)}
	a.Decision = limit.Decision{Granted: o.Taken > 0, Limit: o.Limit, Remaining: max(0, o.Free-a.Taken), ResetAfter: o.Reset}
	if !a.Decision.Granted && len(o.Waits) > 0 {
		wait := o.Waits[0]
		a.Decision.RetryAfter, a.AtLeast = script.Millis(max(wait, -wait)), wait < 0
	}
	return a
}
