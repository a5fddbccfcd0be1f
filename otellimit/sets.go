package otellimit

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/rratelimiter/rratelimiter/limit"
)

// other is the name of the limiters that are too many, as OpenTelemetry calls values
// that are not distinguished.
const other = "_OTHER"

// set is attributes, ready to be given to instruments: made once, so that to count
// allocates nothing.
type set struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

func newSet(attributes ...attribute.KeyValue) *set {
	with := metric.WithAttributeSet(attribute.NewSet(attributes...))
	return &set{[]metric.AddOption{with}, []metric.RecordOption{with}}
}

// table is a map that adds missing entries. A reader that finds something takes no lock.
type table[K comparable, V any] struct {
	mu   sync.Mutex
	made atomic.Pointer[map[K]V]
}

// get returns the entry for key, or adds the one that build makes.
func (t *table[K, V]) get(key K, build func() V) V {
	found, _ := t.getOf(math.MaxInt, key, build)
	return found
}

// getOf is get for a table of at most that size: ok is false if the entry is missing and the
// table is full.
func (t *table[K, V]) getOf(most int, key K, build func() V) (found V, ok bool) {
	if found, ok, full := t.find(most, key); ok || full {
		return found, ok
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if found, ok, full := t.find(most, key); ok || full {
		return found, ok
	}
	next := make(map[K]V)
	if made := t.made.Load(); made != nil {
		maps.Copy(next, *made)
	}
	found = build()
	next[key] = found
	t.made.Store(&next)
	return found, true
}

func (t *table[K, V]) find(most int, key K) (found V, ok, full bool) {
	made := t.made.Load()
	if made == nil {
		return found, false, most == 0
	}
	found, ok = (*made)[key]
	return found, ok, len(*made) >= most
}

// sets are the attributes of everything that is counted.
type sets struct {
	maxNames int
	limiters *table[string, *limiter]
	others   *limiter
	flights  *table[limit.ErrorKind, *set]
}

func newSets(maxNames int) sets {
	return sets{maxNames, &table[string, *limiter]{}, newLimiter(other), &table[limit.ErrorKind, *set]{}}
}

// limiter is the attributes of what one limiter does.
type limiter struct {
	*set // its name

	name      string
	decisions table[decision, *set]
	outcomes  table[limit.Outcome, *set]
	failures  table[limit.ErrorKind, *set]
}

// decision is the part of a limit.Decided that metrics distinguish.
type decision struct {
	outcome limit.Outcome
	source  limit.Source
	kind    limit.ErrorKind
	shadow  bool
}

func newLimiter(name string) *limiter {
	return &limiter{set: newSet(nameKey.String(name)), name: name}
}

// of returns the sets of a limiter, or the shared ones if there are too many limiters.
func (s *sets) of(name string) *limiter {
	l, ok := s.limiters.getOf(s.maxNames, name, func() *limiter { return newLimiter(name) })
	if !ok {
		return s.others
	}
	return l
}

func (l *limiter) decided(d limit.Decided) *set {
	key := decision{d.Outcome, d.Source, d.Kind, d.Shadow}
	return l.decisions.get(key, func() *set { return newSet(append(decisionAttributes(d), nameKey.String(l.name))...) })
}

func (l *limiter) ended(outcome limit.Outcome) *set {
	return l.outcomes.get(outcome, func() *set {
		return newSet(nameKey.String(l.name), outcomeKey.String(string(outcome)))
	})
}

// failedWith returns the limiter's name and the kind of an error.
func (l *limiter) failedWith(kind limit.ErrorKind) *set {
	return l.failures.get(kind, func() *set { return newSet(nameKey.String(l.name), errorKey.String(string(kind))) })
}

func (s *sets) failed(kind limit.ErrorKind) *set {
	return s.flights.get(kind, func() *set { return newSet(errorKey.String(string(kind))) })
}
