package engine

import (
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
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
	ClientID string         // in the keys of the client's own permits
	*Default                // NoDefault if the handle has none
	Lease    *lease.Planner // nil without leases
	Refusals *refusal.Cache // nil if they are not remembered
	Exact    bool           // its members are not merged
	Kept     bool           // the handle stays while its limiter is used

	queue          atomic.Pointer[queue] // the limiter's, while it has one that this handle has made
	prefetched     handleLease
	keys           atomic.Pointer[script.Keys] // see Keys
	audit          atomic.Int64                // when leaked permits are next looked for, Unix µs: an interval may last for centuries
	compared       atomic.Int64                // when the default is next compared with the limiter's, Unix ns
	accepted       atomic.Pointer[limit.Rate]  // what a comparison left in place of Rate; nil if it was none
	interval       atomic.Int64                // as the last audit found it, ns
	noOwnMembersAt atomic.Int64                // the client's last grant when a Release found none of its members
	granted        atomic.Int32                // how often it was, before it had a log
	due            atomic.Pointer[merge.Log]   // has members to merge: the next call takes them along
	asked          atomic.Bool                 // a call was made
	asksFigures    atomic.Bool                 // the interval is not known: the next batch asks for figures
	overall        atomic.Pointer[script.Keys] // the keys that a limiter of type Overall needs; nil while that is not likely
}

// Default is the rate of limiters that have none. Handles may share it.
type Default struct {
	Fallback string               // the configuration, or "": see acquire.lua, and Engine.fallback
	Rate     limit.Rate           // as in Fallback
	Learnt   time.Time            // when the Client first had it; zero: when it was made
	aged     atomic.Pointer[aged] // Fallback, as it was sent last
}

// NoDefault is that of handles without one.
var NoDefault = &Default{}

// Keys returns config, value, client's value, permits, client's permits.
func (l *Limiter) Keys() *script.Keys {
	if keys := l.keys.Load(); keys != nil {
		return keys
	}
	keys := script.KeysOf(redisson.KeysOf(l.Config, l.ClientID).List()...)
	l.keys.Store(keys)
	return keys
}

// SupposeOverall makes calls leave out the client's own keys until a script answers that it needs them.
func (l *Limiter) SupposeOverall() {
	value, permits := redisson.SharedKeys(l.Config)
	l.overall.Store(script.KeysOf(l.Config, value, permits))
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
