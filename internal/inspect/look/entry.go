package look

import (
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// lately is how long a limiter that was used up is called so, a little more than the second between
// two samples. Otherwise one at its limit, which gets and grants a permit now and then, would flicker.
const lately = 1500 * time.Millisecond

// stale is how long what was read in full counts.
const stale = 10 * time.Second

// pair is the value and the set of a limiter, or of one of its clients.
type pair struct {
	client string
	value  string
	set    string

	free   int64
	known  bool    // free is known
	alone  *int64  // the value, if there is no set beside it
	stays  bool    // the value does not end by itself, as a window's of a Redisson before 3.13.3
	broken Anomaly // why calls fail
	noTTL  Anomaly // why keys stay that should not
	round  int     // of the walk, when it was seen
	pace   *pace   // nil unless it was read in full lately
}

// forget is called when the pair was read: a request finds the whole rate if the set is gone, unless the value is a window's.
func (p *pair) forget(rate int64) {
	if p.alone == nil || !p.stays {
		return
	}
	p.free, p.known = rate, true
	if inDebt(*p.alone, 0, rate) {
		var found Findings
		found.inDebt(p, *p.alone)
		p.broken = found.Broken()
	}
}

// entry is what a Reader knows of a limiter.
type entry struct {
	Fields

	name     string
	broken   Anomaly // why the hash is no configuration
	pairs    []*pair
	node     *node
	round    int // of the walk, when it was seen last
	config   int // of the walk, when its configuration was read
	read     time.Time
	usedUp   time.Time // when it was read last with no permit free
	detail   *Limiter  // as it was read last in full
	detailed time.Time
	ttls     time.Time // when times to live were read
}

// free returns the fewest permits that a client finds, and whether it is known.
func (e *entry) free() (int64, bool) {
	if e.broken.Kind != "" {
		return 0, false
	}
	if len(e.pairs) == 0 {
		return e.Rate, true
	}
	least := int64(math.MaxInt64)
	for _, p := range e.pairs {
		if !p.known {
			return 0, false
		}
		least = min(least, p.free)
	}
	return least, true
}

// noteUsedUp is called when all pairs were read in full: at a glance permits that have run out are in use.
func (e *entry) noteUsedUp(now time.Time) {
	if free, known := e.free(); known && free == 0 {
		e.usedUp = now
	}
}

// wasUsedUp reports whether no permit was free a moment ago.
func (e *entry) wasUsedUp(now time.Time) bool { return now.Sub(e.usedUp) < lately }

// why returns why the limiter does not work, the zero Anomaly if it does.
func (e *entry) why() Anomaly {
	if e.broken.Kind != "" {
		return e.broken
	}
	for _, p := range e.pairs {
		for _, why := range []Anomaly{p.broken, p.noTTL} {
			if why.Kind != "" {
				return why
			}
		}
	}
	return Anomaly{}
}

// spoil records why the limiter has no configuration.
func (e *entry) spoil(why Anomaly) {
	e.Fields, e.pairs, e.detail, e.broken = Fields{}, nil, nil, why
}

// set takes over the configuration at a time in epoch ms and reports whether it is one, a broken one
// included.
func (e *entry) set(fields []any, nowMS int64) bool {
	f, broken, found := Judge(fields)
	if broken != "" {
		e.spoil(Anomaly{Kind: "bad_config", Text: broken})
	}
	if !found || broken != "" {
		return found
	}
	was := e.PerClient()
	e.Fields, e.broken = f.At(nowMS), Anomaly{}
	if perClient := f.PerClient(); perClient != was || !perClient && len(e.pairs) == 0 {
		e.pairs = nil
		if !perClient {
			k := redisson.KeysOf(e.name, "")
			e.pairs = []*pair{{value: k.Value, set: k.Permits}}
		}
	}
	return true
}

func (e *entry) limiter(now time.Time) Limiter {
	l := Limiter{
		Name: e.name, Type: rratelimiter.Overall.String(), Rate: e.Rate, IntervalMS: e.IntervalMS, Origin: e.Origin,
		Callers: []Caller{}, AgeMS: now.Sub(e.read).Milliseconds(),
	}
	why := e.why()
	l.Broken, l.BrokenKind = why.Text, why.Kind
	if e.broken.Kind != "" {
		l.Type = ""
	}
	if e.PerClient() {
		l.Type, l.Clients = rratelimiter.PerClient.String(), len(e.pairs)
	}
	if free, known := e.free(); known {
		l.Free = &free
	}
	l.lately = e.wasUsedUp(now)
	l.State = l.Health()
	for _, p := range e.pairs {
		if p.known {
			l.InUse += e.Rate - p.free
		}
	}
	if e.detail != nil && now.Sub(e.detailed) < stale {
		l.Callers, l.PerSecond = e.detail.Callers, e.detail.PerSecond
	} else if e.IntervalMS > 0 {
		l.PerSecond = float64(l.InUse) * 1000 / float64(e.IntervalMS)
	}
	return l
}
