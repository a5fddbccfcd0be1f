package lane

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Bounds of one script call, so that no call occupies the server for long.
const (
	MaxRequests = 4096
	MaxRuns     = 128 // of requests for the same number of permits
)

// MaxWalk is how many requests a walk under the lock handles at most before it lets go of that for a moment, unless
// they are those of one call.
const MaxWalk = 256

// Batch is requests in the order in which one script call decides them.
type Batch struct {
	Sum   int64 // of the permits of all
	Count int   // of requests
	Line  int   // how many of the first stand in line
	Runs  []Run

	peeks      bool      // it has one request, which takes nothing
	answeredAt time.Time // when the server last answered, but not in full; zero: it did not
}

// Progressed lets the callers of a batch with several calls wait on: the server answers.
func (b *Batch) Progressed() { b.answeredAt = time.Now() }

// Run is a number of consecutive requests for the same number of permits.
type Run struct {
	Permits int64
	Count   int64
	InLine  bool
	UpTo    bool // one request, for as many permits as are free, up to Count
}

// Add appends a request. It returns false if the batch has no room: it has MaxRequests, or would
// have more runs than MaxRuns minus reserved.
func (b *Batch) Add(permits int64, inLine bool, reserved int) bool {
	if b.Count >= MaxRequests {
		return false
	}
	last := len(b.Runs) - 1
	if last >= 0 && b.Runs[last].Permits == permits && b.Runs[last].InLine == inLine && !b.Runs[last].UpTo {
		b.Runs[last].Count++
	} else {
		if len(b.Runs) >= MaxRuns-reserved {
			return false
		}
		b.Runs = append(b.Runs, Run{Permits: permits, Count: 1, InLine: inLine})
	}
	if inLine {
		b.Line++
	}
	b.Count++
	b.Sum += permits
	return true
}

// AddUpTo appends a request for as many permits as are free, up to a bound. To a script that is as many
// requests for one permit. It returns false if the batch has no room.
func (b *Batch) AddUpTo(permits int64) bool {
	if b.Count >= MaxRequests || len(b.Runs) >= MaxRuns {
		return false
	}
	b.Runs = append(b.Runs, Run{Permits: 1, Count: permits, UpTo: true})
	b.Count++
	b.Sum += permits
	return true
}

// DropLast removes the request that AddUpTo has just added.
func (b *Batch) DropLast() {
	last := len(b.Runs) - 1
	b.Sum -= b.Runs[last].Count
	b.Runs = b.Runs[:last]
	b.Count--
}

// Reset empties the batch and keeps its capacity.
func (b *Batch) Reset() { *b = Batch{Runs: b.Runs[:0]} }

// Args appends the requests as scripts read them, run-length coded: permits, count, permits, count...
// A script that must change nothing gets the permits alone.
func (b *Batch) Args(all []any) []any {
	if b.peeks {
		return append(all, script.Number(b.Sum))
	}
	for _, r := range b.Runs {
		all = append(all, script.Number(r.Permits), script.Number(r.Count))
	}
	return all
}

// NewPeek returns a batch of one request that takes nothing.
func NewPeek(permits int64) *Batch {
	b := &Batch{peeks: true}
	b.Add(permits, false, 0)
	return b
}

// Outcome is a script's answer to a batch.
type Outcome struct {
	Limit, Free, Taken int64 // Free: before the batch
	Reset              time.Duration
	RetryAfters        []int64 // ms, for each refused run that has one

	// Of limiters kept by key.

	// GiveBack gives back that many of the permits taken. It may be called more than once, also
	// concurrently, until all are given back.
	GiveBack func(ctx context.Context, permits int64) error

	// Charge charges so many permits more for a grant, free or not, or gives back as many if that is below 0.
	// nil: the limiter's grants can't be settled.
	Charge func(ctx context.Context, more int64) error

	// Of RateLimiters.

	Interval  time.Duration
	Keep      time.Duration // the keep-alive time, which the attempt restarted; 0 for none
	WindowEnd int64         // epoch ms, if the value counts a fixed window
	GrantedAt int64         // epoch ms by the server's clock, of a batch with holds
}

// Result is what becomes of one request of a batch.
type Result struct {
	Decision limit.Decision
	Taken    int64 // the permits granted
	Exceeds  bool  // more than the limit; never if that is 0, which refuses all
	Unasked  bool  // refused for another before it in the line; RetryAfter, if known, is that one's
}

// Results appends the result of each request, in order. It walks the requests as the script did.
// Starting from the permits taken gives the same grants as starting from the free permits: each
// granted request fits in the rest of them, and no refused one does.
func (b *Batch) Results(all []Result, o Outcome) []Result {
	left, free, waits := o.Taken, o.Free, o.RetryAfters
	blocked := false
	var first struct { // that was refused in the line: those behind it who want as many wait as long
		permits int64
		wait    time.Duration
	}
	for _, r := range b.Runs {
		var wait time.Duration
		if r.InLine && blocked && r.Permits >= first.permits {
			wait = first.wait
		}
		asked, requests := false, r.Count
		if r.UpTo {
			requests = 1
		}
		for range requests {
			a := Result{Decision: limit.Decision{Limit: o.Limit, ResetAfter: o.Reset}}
			refused := false
			switch {
			case r.UpTo:
				a.Taken = min(left, r.Count)
				refused = a.Taken < r.Count
			case r.Permits <= left && (!r.InLine || !blocked):
				a.Taken = r.Permits
			case r.Permits > o.Limit && o.Limit > 0:
				a.Exceeds = true
			case r.InLine && blocked:
				a.Unasked = !asked
				a.Decision.RetryAfter = wait
			default:
				refused, blocked = true, blocked || r.InLine
			}
			if refused && !asked {
				asked = true
				if len(waits) > 0 {
					wait, waits = script.Millis(waits[0]), waits[1:]
				}
				if r.InLine {
					first.permits, first.wait = r.Permits, wait
				}
			}
			if refused && a.Taken == 0 {
				a.Decision.RetryAfter = wait
			}
			left -= a.Taken
			free -= a.Taken
			a.Decision.Granted, a.Decision.Remaining = a.Taken > 0 || r.Permits == 0 && free >= 0, max(0, free)
			all = append(all, a)
		}
	}
	return all
}
