package dashboard

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

const (
	// refusalSpan is how many seconds the pace of refusals is taken of.
	refusalSpan = 10

	// maxObserved is how many limiters are counted, and a few more if they come at once.
	maxObserved = 10_000
)

// Observer counts, for the page, the refusals of the Clients and limiters that have it as
// WithObserver's. It is safe for concurrent use. The zero Observer counts from nothing.
type Observer struct {
	limit.NoObserver

	counts sync.Map // of *refusals, by limiter
	size   atomic.Int64
}

// refusals are the refusals of one limiter.
type refusals struct {
	total atomic.Int64
	last  [refusalSpan]atomic.Uint64 // each a second, and in the lower half how many came in it
}

// Decided counts a refusal.
func (o *Observer) Decided(_ context.Context, d limit.Decided) {
	if d.Outcome == limit.Failed {
		return
	}
	if r := o.find(d.Limiter); r != nil && d.Outcome == limit.Refused {
		r.add(time.Now())
	}
}

// find returns the refusals of a limiter, nil if too many others are counted.
func (o *Observer) find(name string) *refusals {
	found, known := o.counts.Load(name)
	if !known {
		if o.size.Load() >= maxObserved {
			return nil
		}
		if found, known = o.counts.LoadOrStore(name, &refusals{}); !known {
			o.size.Add(1)
		}
	}
	r, _ := found.(*refusals)
	return r
}

func (r *refusals) add(now time.Time) {
	r.total.Add(1)
	second := uint64(now.Unix())
	last := &r.last[second%refusalSpan]
	for was := last.Load(); was>>32 < second; was = last.Load() {
		last.CompareAndSwap(was, second<<32)
	}
	last.Add(1)
}

// pace returns how many came each second of the span.
func (r *refusals) pace(now time.Time) float64 {
	oldest, sum := uint64(now.Unix())-refusalSpan, uint64(0)
	for i := range r.last {
		if last := r.last[i].Load(); last>>32 > oldest {
			sum += last & math.MaxUint32
		}
	}
	return float64(sum) / refusalSpan
}

// of returns the refusals of a limiter, in all and a second; known is false if the
// observer received no decision about it.
func (o *Observer) of(name string) (total int64, pace float64, known bool) {
	if o == nil {
		return 0, 0, false
	}
	found, known := o.counts.Load(name)
	if !known {
		return 0, 0, false
	}
	r, _ := found.(*refusals)
	return r.total.Load(), r.pace(time.Now()), true
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
