package dashboard

import (
	"context"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

const (
	// refusalSpan is how many seconds the pace of refusals is taken of.
	refusalSpan = 10

	// maxObserved is how many limiters are counted.
	maxObserved = 10_000
)

// Observer counts, for the page, the refusals of the Clients and limiters that have it as
// WithObserver's. It is safe for concurrent use. The zero Observer counts from nothing.
type Observer struct {
	limit.NoObserver

	mu     sync.Mutex
	counts map[string]*refusals
}

// refusals are the refusals of one limiter.
type refusals struct {
	total  int64
	second int64 // of the newest of last
	last   [refusalSpan]int64
}

// Decided counts a refusal.
func (o *Observer) Decided(_ context.Context, d limit.Decided) {
	if d.Outcome == limit.Failed {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.counts == nil {
		o.counts = make(map[string]*refusals)
	}
	r := o.counts[d.Limiter]
	if r == nil {
		if len(o.counts) >= maxObserved {
			return
		}
		r = &refusals{}
		o.counts[d.Limiter] = r
	}
	r.move(time.Now().Unix())
	if d.Outcome == limit.Refused {
		r.total++
		r.last[r.second%refusalSpan]++
	}
}

// move forgets refusals older than the span.
func (r *refusals) move(second int64) {
	for r.second = max(r.second, second-refusalSpan); r.second < second; {
		r.second++
		r.last[r.second%refusalSpan] = 0
	}
}

// of returns the refusals of a limiter, in all and a second; known is false if the
// observer received no decision about it.
func (o *Observer) of(name string) (total int64, pace float64, known bool) {
	if o == nil {
		return 0, 0, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.counts[name]
	if r == nil {
		return 0, 0, false
	}
	r.move(time.Now().Unix())
	var sum int64
	for _, n := range r.last {
		sum += n
	}
	return r.total, float64(sum) / refusalSpan, true
}

// pace is what refusals are sorted by; limiters without reports come last.
func (o *Observer) pace(name string) float64 {
	total, pace, known := o.of(name)
	if !known {
		return -1
	}
	return pace + float64(total)*1e-12
}

// refusing reports whether requests of a limiter were refused in the last seconds.
func (o *Observer) refusing(name string) bool {
	_, pace, _ := o.of(name)
	return pace > 0
}
