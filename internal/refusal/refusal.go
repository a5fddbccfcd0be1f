// Package refusal remembers that permits of a limiter were refused, as long as
// nothing can have changed that.
package refusal

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/clock"
	"github.com/rratelimiter/rratelimiter/limit"
)

// unsureFor is how long a refusal lasts while the limiter's time to live is not
// known.
const unsureFor = 100 * time.Millisecond

// Cache is what one handle remembers. A nil Cache remembers nothing.
type Cache struct {
	clock   *clock.Clock
	changes *atomic.Uint64 // of the limiter through its Client
	grants  *grants        // likewise
	tries   slot           // that permits are refused
	figures slot           // with which figures
	reading atomic.Bool    // the time to live is being read
}

// slot holds a refusal.
type slot struct{ atomic.Pointer[refusal] }

// refusal is the answer to a request that was refused. It is not changed.
type refusal struct {
	permits  int64
	most     int64 // the most permits that are known to be within the rate
	sent     time.Time
	lasts    time.Duration // from then
	life     time.Duration // from then, for which the limiter is known to live
	unsure   bool          // it may last longer: the limiter's time to live is not known
	before   Moment
	decision limit.Decision
}

// Moment is how often a limiter was changed, and permits of it granted, as far as
// is known.
type Moment struct{ changes, grants uint64 }

// Now returns the moment to Note a request with that is about to be made.
func (c *Cache) Now() Moment {
	if c == nil {
		return Moment{}
	}
	return Moment{c.changes.Load(), c.grants.count.Load()}
}

// Granted returns that moment, and after what has been granted by now.
func (c *Cache) Granted(m Moment) Moment { return Moment{m.changes, c.Now().grants} }

// since reports whether an answer of that moment still holds: a grant makes a
// refusal no less true, but its figures.
func (c *Cache) since(s *slot, before Moment) bool {
	now := c.Now()
	return before.changes == now.changes && (s == &c.tries || before.grants == now.grants)
}

// valid reports whether the refusal still holds.
func (c *Cache) valid(s *slot, a *refusal) bool {
	return a != nil && c.since(s, a.before) && c.clock.Since(a.sent) < a.lasts
}

// find returns the refusal that answers a request, nil if there is none.
func (c *Cache) find(s *slot, permits int64) *refusal {
	a := s.Load()
	if a == nil || permits < a.permits || permits > a.most || !c.valid(s, a) {
		return nil
	}
	return a
}

// Refuses reports whether this many permits are known to be refused.
func (c *Cache) Refuses(permits int64) bool { return c != nil && c.find(&c.tries, permits) != nil }

// Decision is Refuses with the current figures.
func (c *Cache) Decision(permits int64) (d limit.Decision, ok bool) {
	if c == nil {
		return limit.Decision{}, false
	}
	a := c.find(&c.figures, permits)
	if a == nil {
		return limit.Decision{}, false
	}
	d, age := a.decision, c.clock.Since(a.sent)
	d.RetryAfter = max(1, d.RetryAfter-age)
	d.ResetAfter = max(1, d.ResetAfter-age)
	return d, true
}

// Note remembers a refusal that was asked for at that moment; without ResetAfter
// its figures are not all known. alive is when a caller must ask again to keep the
// limiter alive; zero if that is not known.
func (c *Cache) Note(permits int64, sent time.Time, before Moment, d limit.Decision, alive time.Time) {
	if c == nil || d.RetryAfter <= 0 || !c.since(&c.tries, before) {
		return
	}
	a := &refusal{
		permits: permits, most: max(permits, d.Limit), sent: sent, before: before, decision: d,
		lasts: min(d.RetryAfter, unsureFor), unsure: d.RetryAfter > unsureFor,
	}
	if old := c.tries.Load(); !alive.IsZero() {
		a.settle(alive.Sub(sent))
	} else if c.valid(&c.tries, old) && old.life > 0 {
		a.settle(old.life - sent.Sub(old.sent))
	}
	if d.ResetAfter > 0 && c.since(&c.figures, before) {
		c.put(&c.figures, a)
	}
	c.put(&c.tries, a)
}

// settle makes a refusal last as long as the limiter's time to live allows.
func (a *refusal) settle(life time.Duration) {
	a.life, a.unsure, a.lasts = life, false, min(a.decision.RetryAfter, life)
}

// put keeps the refusal of the fewest permits, and what is known of the rate.
func (c *Cache) put(s *slot, a *refusal) {
	for {
		old, kept := s.Load(), a
		if old != nil && c.since(s, old.before) && (old.most > a.most || old.permits < a.permits) {
			both := *a
			if old.permits < a.permits && c.valid(s, old) {
				both = *old
			}
			both.most = max(old.most, a.most)
			kept = &both
		}
		if s.CompareAndSwap(old, kept) {
			return
		}
	}
}

// Confirm has new refusals last until the moment that the server named, or half
// as long as the limiter lives: a time to live that each request starts anew must
// not run out because no requests come. lives reads that time, below 0 if it has no
// end; ok is false if that failed.
func (c *Cache) Confirm(lives func() (life time.Duration, ok bool)) {
	unsure := func(s *slot) bool {
		a := s.Load()
		return a != nil && a.unsure && c.valid(s, a)
	}
	if !unsure(&c.tries) && !unsure(&c.figures) || !c.reading.CompareAndSwap(false, true) {
		return
	}
	defer c.reading.Store(false)
	now := c.clock.Now()
	life, ok := lives()
	if !ok {
		return
	}
	for _, s := range []*slot{&c.tries, &c.figures} {
		if a := s.Load(); a != nil && a.unsure {
			sure, all := *a, time.Duration(math.MaxInt64/2) // to spare for sums
			if life >= 0 {
				all = now.Sub(a.sent) + life/2
			}
			sure.settle(all)
			s.CompareAndSwap(a, &sure)
		}
	}
}
