package engine

import (
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// findings are what an answer tells of the state that its script found.
type findings int

const (
	repaired  findings = 1 << iota // damage, which is there no longer
	foreign                        // grants or windows of Redissons that the Client's layout excludes
	overruled                      // the default of a program that began later
)

// tellPause is how long the observer is not told again of what lasts.
const tellPause = time.Minute

// found takes note of what an answer tells of a limiter's state. What was refused
// before a repair may be free now; the observer is told now and then.
func (e *Engine) found(l *Limiter, f findings) {
	if f&repaired != 0 {
		e.refusals.Changed(l.Config)
	}
	if f == 0 || e.observer == nil {
		return
	}
	now := e.clock.Now().UnixNano()
	for i, kind := range []limit.EventKind{limit.StateRepaired, limit.LayoutsExclude} {
		last := l.told[i].Load()
		if f&(1<<i) != 0 && (last == 0 || now-last >= int64(tellPause)) && l.told[i].CompareAndSwap(last, now) {
			e.observer.Happened(limit.Event{Kind: kind, Limiter: l.Observed})
		}
	}
}
