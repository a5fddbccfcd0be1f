package engine

import (
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// findings are what an answer says about the state that its script found.
type findings int

const (
	repaired  findings = 1 << iota // damage, now repaired
	foreign                        // grants or windows of Redissons that the Client's layout excludes
	overruled                      // the default of a program that began later
)

// reportPause is how long an event that lasts is not reported again.
const reportPause = time.Minute

// found records what an answer says about a limiter's state. Permits refused before a repair may be
// free now. The observer is informed now and then.
func (e *Engine) found(l *Limiter, f findings) {
	if f&repaired != 0 {
		e.refusals.Changed(l.Config)
		e.happened(limit.Event{Kind: limit.StateRepaired, Limiter: l.Observed}, reportPause)
	}
	if f&foreign != 0 {
		e.happened(limit.Event{Kind: limit.LayoutsExclude, Limiter: l.Observed}, reportPause)
	}
}

const (
	// once is the pause for events that are reported once.
	once time.Duration = math.MaxInt64

	// maxReported is how many events are remembered so that they are not reported again.
	maxReported = 1000
)

// happened reports an event that many handles and keys may find, unless the same was reported less
// than a pause ago.
func (e *Engine) happened(event limit.Event, pause time.Duration) {
	now := e.clock.Now()
	e.mu.Lock()
	last, told := e.lastReported[event]
	if told = told && now.Sub(last) < pause; !told {
		if len(e.lastReported) >= maxReported {
			clear(e.lastReported)
		}
		e.lastReported[event] = now
	}
	e.mu.Unlock()
	if !told {
		e.observer.Happened(event)
	}
}
