package engine

import (
	"math"
	"strconv"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

const (
	repaired     findings = 1 << iota // damage, now repaired
	foreign                           // grants or windows of Redissons that the Client's layout excludes
	newerDefault                      // that of a program that began later
)

// findings are what an answer says about the state that its script found: see acquire.lua.
type findings int

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

// happened reports an event that many handles and keys may find, unless the same was reported less than a pause ago.
func (e *Engine) happened(event limit.Event, pause time.Duration) {
	now := time.Now()
	e.reports.Lock()
	last, told := e.lastReported[event]
	if told = told && now.Sub(last) < pause; !told {
		if len(e.lastReported) >= maxReported {
			clear(e.lastReported)
		}
		e.lastReported[event] = now
	}
	e.reports.Unlock()
	if !told {
		e.observer.Happened(event)
	}
}

// isWord reports whether a script answered with just that word.
func isWord(reply any, word string) bool {
	words, _ := reply.([]any)
	return len(words) == 1 && words[0] == word
}

// rateOf reads a rate in the form scripts use.
func rateOf(values []int64) limit.Rate {
	return limit.Rate{
		Permits: values[0], Interval: script.Millis(values[1]), PerClient: values[2] == 1, KeepAlive: script.Millis(values[3]),
	}
}

// RateWords are a rate in the form scripts use.
func RateWords(r limit.Rate) []any {
	kind := 0
	if r.PerClient {
		kind = 1
	}
	return []any{r.Permits, r.Interval.Milliseconds(), kind, r.KeepAlive.Milliseconds()}
}

// differs reports that the limiter has another rate than its handle.
func (e *Engine) differs(l *Limiter, permits int64, interval time.Duration) {
	e.happened(limit.Event{
		Kind: limit.RateDiffers, Limiter: l.Observed,
		Found: limit.Rate{Permits: permits, Interval: interval}, Want: limit.Rate{Permits: l.Rate.Permits, Interval: l.Rate.Interval},
	}, once)
}

// comparePause is how long a handle waits before it compares its default with the limiter's again:
// another program may have set up the limiter since.
const comparePause = time.Minute

// defaultCheckDue reports whether it is time to compare the handle's default with the one that set up the limiter.
func (l *Limiter) defaultCheckDue(now time.Time) bool {
	return l.Fallback != "" && now.UnixNano() >= l.compared.Load()
}

// aged is a handle's Fallback with the age that it had then.
type aged struct {
	text string
	age  time.Duration
}

// ageFor is how long an age is sent that was right before: half of what the script allows for.
const ageFor = time.Second

// fallback returns the handle's Fallback as scripts read it. Beside a default stands its age, so that the
// server's clock can tell when the Client first had it if this machine's is wrong.
func (e *Engine) fallback(l *Limiter, now time.Time) string {
	if l.Fallback == "" {
		return ""
	}
	// The monotonic clock may stand while a machine sleeps, and the other may have been set back.
	since := l.Learnt
	if since.IsZero() {
		since = e.made
	}
	age := max(0, now.Sub(since), now.Round(0).Sub(since.Round(0)))
	last := l.aged.Load()
	if last == nil || age < last.age || age-last.age >= ageFor {
		last = &aged{l.Fallback + " " + strconv.FormatInt(age.Milliseconds(), 10), age}
		l.aged.Store(last)
	}
	return last.text
}

// Fallback returns the handle's Fallback as scripts read it.
func (e *Engine) Fallback(l *Limiter) string { return e.fallback(l, time.Now()) }

// defaultChecked records that a call sent then was answered, and reports whether it compared them: if that was due.
func (l *Limiter) defaultChecked(sent time.Time) (compared bool) {
	if compared = l.defaultCheckDue(sent); compared {
		l.compared.Store(sent.Add(comparePause).UnixNano())
	}
	return compared
}

// showed records the rate that an answer shows, of a call that compared the default or did not. If it is neither the
// handle's nor what a comparison has left, another program has made the limiter since: the next request compares.
func (l *Limiter) showed(permits int64, interval time.Duration, comparing bool) {
	rate, accepted := limit.Rate{Permits: permits, Interval: interval}, l.accepted.Load()
	switch {
	case l.Fallback == "" || permits == 0 || accepted != nil && *accepted == rate:
	case permits == l.Rate.Permits && interval == l.Rate.Interval:
		l.accepted.Store(nil)
	case comparing:
		left := rate // rate itself would be on the heap at each call
		l.accepted.Store(&left)
	default:
		l.compared.Store(0)
	}
}

// olderDefault reads the answer of a script that found the default of a program that began before. The words in front
// of it are the answer's name and, for several limiters, the limiter's number.
func olderDefault(reply any) (older limit.Rate, number int64, ok bool) {
	words, _ := reply.([]any)
	if len(words) != 5 && len(words) != 6 || words[0] != "default" {
		return limit.Rate{}, 0, false
	}
	values, err := script.Integers(words[1:], 4)
	if err != nil {
		return limit.Rate{}, 0, false
	}
	return rateOf(values[len(values)-4:]), values[0], true
}
