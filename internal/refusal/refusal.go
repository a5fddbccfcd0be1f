// Package refusal remembers that permits of a limiter were refused, as long as nothing can have changed that.
package refusal

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// The bounds of AskAgain.
const (
	share            = 64
	soonest, longest = time.Second, time.Minute
)

// AskAgain returns how long a refusal is believed whose wait the server named: other programs free
// permits, and don't say so. It is the wait, or if that is long a 64th of it, between a second and a
// minute. Up to a quarter of that is drawn, so that many programs do not ask at one moment.
func AskAgain(wait time.Duration) time.Duration {
	base := min(max(wait/share, soonest), longest*4/5)
	return min(wait, (base + rand.N(base/4)).Truncate(time.Millisecond)) // what servers count in
}

// Cache is what one handle remembers. A nil Cache remembers nothing.
type Cache struct {
	*counts // of the limiter through its Client

	tries   slot // that permits are refused
	figures slot // with which figures
}

// slot holds a refusal.
type slot struct{ atomic.Pointer[refusal] }

// refusal is the answer to a request that was refused. It is not changed.
type refusal struct {
	permits  int64
	most     int64 // the most permits that are known to be within the rate
	sent     time.Time
	lasts    time.Duration // from then
	before   Moment
	decision limit.Decision
}

// Moment is how often a limiter was changed, and permits of it granted, as far as is known.
type Moment struct{ changes, grants uint64 }

// Now returns the moment to Note a request with that is about to be made.
func (c *Cache) Now() Moment {
	if c == nil {
		return Moment{}
	}
	return Moment{c.changes.Load(), c.grants.Load()}
}

// Granted returns that moment, and after what has been granted by now.
func (c *Cache) Granted(m Moment) Moment { return Moment{m.changes, c.Now().grants} }

// since reports whether an answer of that moment still holds: a grant makes a refusal no less true, but its figures.
func (c *Cache) since(s *slot, before Moment) bool {
	now := c.Now()
	return before.changes == now.changes && (s == &c.tries || before.grants == now.grants)
}

// find returns the refusal that answers a request, nil if there is none.
func (c *Cache) find(s *slot, permits int64) *refusal {
	a := s.Load()
	if a == nil || permits < a.permits || permits > a.most || !c.since(s, a.before) || time.Since(a.sent) >= a.lasts {
		return nil
	}
	return a
}

// Refuses reports whether this many permits are known to be refused.
func (c *Cache) Refuses(permits int64) bool { return c != nil && c.find(&c.tries, permits) != nil }

// Wait returns how long this many permits are known to be refused, if others free none; 0 if that is not known.
func (c *Cache) Wait(permits int64) time.Duration {
	if c == nil {
		return 0
	}
	a := c.find(&c.tries, permits)
	if a == nil {
		return 0
	}
	return max(1, a.decision.RetryAfter-time.Since(a.sent))
}

// Decision is Refuses with the current figures.
func (c *Cache) Decision(permits int64) (d limit.Decision, ok bool) {
	if c == nil {
		return limit.Decision{}, false
	}
	a := c.find(&c.figures, permits)
	if a == nil {
		return limit.Decision{}, false
	}
	d, age := a.decision, time.Since(a.sent)
	d.RetryAfter = max(1, d.RetryAfter-age)
	d.ResetAfter = max(1, d.ResetAfter-age)
	return d, true
}

// Note remembers a refusal that was asked for at that moment; without ResetAfter its figures are not all known. alive
// is when a caller must ask again to keep the limiter alive; zero if that needs no requests.
func (c *Cache) Note(permits int64, sent time.Time, before Moment, d limit.Decision, alive time.Time) {
	if c == nil || d.RetryAfter <= 0 || !c.since(&c.tries, before) {
		return
	}
	a := &refusal{
		permits: permits, most: max(permits, d.Limit), sent: sent, before: before, decision: d, lasts: AskAgain(d.RetryAfter),
	}
	if !alive.IsZero() {
		a.lasts = min(a.lasts, alive.Sub(sent))
	}
	if d.ResetAfter > 0 && c.since(&c.figures, before) {
		c.put(&c.figures, a)
	}
	c.put(&c.tries, a)
}

// put keeps the refusal of the fewest permits, and what is known of the rate.
func (c *Cache) put(s *slot, a *refusal) {
	for {
		old, kept := s.Load(), a
		if old != nil && c.since(s, old.before) && (old.most > a.most || old.permits < a.permits) {
			both := *a
			if old.permits < a.permits && time.Since(old.sent) < old.lasts {
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
