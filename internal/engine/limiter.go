package engine

import (
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/refusal"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Limiter is what a handle knows about its limiter.
type Limiter struct {
	Name     string
	Err      error          // in its options; nothing is asked then
	Observed string         // its name for observers
	Config   string         // the config key, by which the limiter is known
	Keys     *script.Keys   // config, value, client's value, permits, client's permits
	Fallback string         // configuration for a limiter that has none, or "": see acquire.lua, and Engine.fallback
	Rate     limit.Rate     // the handle's, as in Fallback; zero if it has none
	Learnt   time.Time      // when the Client first had Fallback; zero: when it was made
	Lease    *lease.Planner // nil without leases
	Refusals *refusal.Cache // nil if they are not remembered

	prefetched     handleLease
	audit          atomic.Int64                // when leaked permits are next looked for, Unix µs: an interval may last for centuries
	aged           atomic.Pointer[aged]        // Fallback, as it was sent last
	compared       atomic.Int64                // when the default is next compared with the limiter's, Unix ns
	accepted       atomic.Pointer[limit.Rate]  // what a comparison left in place of Rate; nil if it was none
	interval       atomic.Int64                // as the last audit found it, ns
	noOwnMembersAt atomic.Int64                // the client's last grant when a Release found none of its members
	overall        atomic.Pointer[script.Keys] // the keys that a limiter of type Overall needs; nil while the type is unknown
}

// Behind is what is behind a RateLimiter, or a limiter of keys of another package.
type Behind struct {
	Engine  *Engine
	Limiter *Limiter
	Policy  *outage.Policy // of a limiter of keys
}

// auditDue reports whether it is time to look for leaked permits. That costs the server more than
// a plain refusal, so once an interval is enough.
func (l *Limiter) auditDue(now time.Time) bool { return now.UnixMicro() >= l.audit.Load() }

func (l *Limiter) auditDone(now time.Time, interval time.Duration) {
	l.audit.Store(now.Add(interval).UnixMicro())
	l.interval.Store(int64(interval))
}
