package compat_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rratelimiter/rratelimiter/codec"
)

// state is what Redis holds of one limiter. Times are epoch milliseconds.
type state struct {
	config    map[string]string // the hash; nil where there is none
	configEnd span
	pairs     map[string]*pair // by the client's id; "" is the pair that all share
}

// pair is a value key and its set of permits in use.
type pair struct {
	hasValue bool
	value    int64
	valueEnd span
	rows     []row // in the order of the set; empty where there is none
	rowsEnd  span
}

// row is a member of a set.
type row struct {
	member  string // its bytes; "" for one whose id only its writer knows yet
	layout  codec.Layout
	permits int64
	at      span // the score
	owner   *actor
}

// span is a moment that is known to lie between the two, both included. The
// zero span, as the end of a key, stands for never.
type span struct{ from, to int64 }

var never span

func (s span) add(ms int64) span { return span{s.from + ms, s.to + ms} }

func (s span) String() string {
	switch {
	case s == never:
		return "never"
	case s.from == s.to:
		return strconv.FormatInt(s.from, 10)
	}
	return fmt.Sprintf("%d..%d", s.from, s.to)
}

func (s *state) clone() *state {
	c := *s
	c.config = maps.Clone(s.config)
	c.pairs = make(map[string]*pair, len(s.pairs))
	for id, p := range s.pairs {
		copied := *p
		copied.rows = slices.Clone(p.rows)
		c.pairs[id] = &copied
	}
	return &c
}

func (s *state) number(field string) int64 {
	n, err := strconv.ParseInt(s.config[field], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func (s *state) rate() int64      { return s.number("rate") }
func (s *state) interval() int64  { return s.number("interval") }
func (s *state) keepAlive() int64 { return s.number("keepAliveTime") }

// set is Redis' SET: the key lives for ever again.
func (p *pair) set(value int64) { p.hasValue, p.value, p.valueEnd = true, value, never }

// expire is PEXPIRE of both keys, where they exist.
func (p *pair) expire(end span) {
	if p.hasValue {
		p.valueEnd = end
	}
	if len(p.rows) > 0 {
		p.rowsEnd = end
	}
}

// setRows replaces the set's members; a set without any is gone, and its end
// with it.
func (p *pair) setRows(rows []row) {
	p.rows = rows
	if len(rows) == 0 {
		p.rowsEnd = never
	}
}

func (p *pair) del() { *p = pair{} }

func (p *pair) delValue() { p.hasValue, p.value, p.valueEnd = false, 0, never }

func sum(rows []row) int64 {
	total := int64(0)
	for _, r := range rows {
		total += r.permits
	}
	return total
}

// expireKeys removes the keys that have come to their end by now, and tells
// whether that is certain for all.
func (s *state) expireKeys(now span) (certain bool) {
	certain = true
	gone := func(end span) bool {
		if end == never || end.from > now.to {
			return false
		}
		certain = certain && end.to <= now.from
		return true
	}
	if gone(s.configEnd) {
		s.config, s.configEnd = nil, never
	}
	for _, p := range s.pairs {
		if gone(p.valueEnd) {
			p.delValue()
		}
		if gone(p.rowsEnd) {
			p.setRows(nil)
		}
	}
	return certain
}

// shift is what the passing of so many milliseconds does to the state, told by
// moving it back in time instead. It tells whether that is certain.
func (s *state) shift(ms int64, now span) bool {
	s.eachEnd(func(end *span) { *end = end.add(-ms) })
	for _, p := range s.pairs {
		for i := range p.rows {
			p.rows[i].at = p.rows[i].at.add(-ms)
		}
	}
	return s.expireKeys(now)
}

// inherit gives rows whose owners are not known those of an earlier state; rows
// that are new are of the owner given.
func (s *state) inherit(earlier *state, owner *actor) {
	owners := make(map[string]*actor)
	for _, p := range earlier.pairs {
		for _, r := range p.rows {
			owners[r.member[:len(r.member)-4]] = r.owner
		}
	}
	for _, p := range s.pairs {
		for i, r := range p.rows {
			known, ok := owners[r.member[:len(r.member)-4]]
			if !ok {
				known = owner
			}
			p.rows[i].owner = known
		}
	}
}

func (s *state) eachEnd(f func(*span)) {
	ends := []*span{&s.configEnd}
	for _, p := range s.pairs {
		ends = append(ends, &p.valueEnd, &p.rowsEnd)
	}
	for _, end := range ends {
		if *end != never {
			f(end)
		}
	}
}

// edges returns the moments at which something ends, for any of the intervals:
// what is asked of the limiter near one of them has no certain answer.
func (s *state) edges(now int64, intervals ...int64) []span {
	var edges []span
	s.eachEnd(func(end *span) { edges = append(edges, *end) })
	for _, p := range s.pairs {
		for _, r := range p.rows {
			if r.at.to > now {
				edges = append(edges, r.at)
			}
			for _, interval := range intervals {
				edges = append(edges, r.at.add(interval))
			}
		}
	}
	return edges
}

// tolerance is what the end of a key may be off, in milliseconds: it is written
// and read as a number of milliseconds left, and a busy machine may take its
// time between the two. All that the model tells apart is further apart.
const tolerance = 1000

func meets(a, b span, tolerance int64) bool {
	if a == never || b == never {
		return a == b
	}
	return a.from <= b.to+tolerance && b.from <= a.to+tolerance
}

// differs says in which way the state that was read is not the wanted one, ""
// where it is. It also gives the rows that were read their owners.
func (s *state) differs(want *state) string {
	if !maps.Equal(s.config, want.config) {
		return fmt.Sprintf("config is %v, not %v", s.config, want.config)
	}
	if !meets(s.configEnd, want.configEnd, tolerance) {
		return fmt.Sprintf("config ends at %v, not at %v", s.configEnd, want.configEnd)
	}
	for id, p := range s.pairs {
		wanted := want.pairs[id]
		switch {
		case p.hasValue != wanted.hasValue || p.value != wanted.value:
			return fmt.Sprintf("value of client %q is %v %d, not %v %d", id, p.hasValue, p.value, wanted.hasValue, wanted.value)
		case !meets(p.valueEnd, wanted.valueEnd, tolerance):
			return fmt.Sprintf("value of client %q ends at %v, not at %v", id, p.valueEnd, wanted.valueEnd)
		case !meets(p.rowsEnd, wanted.rowsEnd, tolerance):
			return fmt.Sprintf("permits of client %q end at %v, not at %v", id, p.rowsEnd, wanted.rowsEnd)
		}
		if why := p.matchRows(wanted.rows); why != "" {
			return fmt.Sprintf("permits of client %q: %s", id, why)
		}
	}
	return ""
}

// matchRows matches the rows that were read with the wanted ones, by their
// bytes where these are known.
func (p *pair) matchRows(wanted []row) string {
	if len(p.rows) != len(wanted) {
		return fmt.Sprintf("%d rows, not %d", len(p.rows), len(wanted))
	}
	known := make(map[string]row)
	var fresh []row
	for _, r := range wanted {
		if r.member == "" {
			fresh = append(fresh, r)
		} else {
			known[r.member] = r
		}
	}
	for i, r := range p.rows {
		want, ok := known[r.member]
		if !ok {
			same := func(want row) bool {
				return want.layout == r.layout && want.permits == r.permits && meets(want.at, r.at, 0)
			}
			n := slices.IndexFunc(fresh, same)
			if n < 0 {
				return fmt.Sprintf("row %x of %d permits, dated %v, is not wanted", r.member, r.permits, r.at)
			}
			want = fresh[n]
			fresh = slices.Delete(fresh, n, n+1)
		}
		if !meets(want.at, r.at, 0) {
			return fmt.Sprintf("row %x is dated %v, not %v", r.member, r.at, want.at)
		}
		p.rows[i].owner = want.owner
	}
	return ""
}

func (s *state) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "config %v, ends %v", s.config, s.configEnd)
	for _, id := range slices.Sorted(maps.Keys(s.pairs)) {
		p := s.pairs[id]
		if !p.hasValue && len(p.rows) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n\tclient %q: value ", id)
		if p.hasValue {
			fmt.Fprintf(&b, "%d, ends %v", p.value, p.valueEnd)
		} else {
			b.WriteString("missing")
		}
		fmt.Fprintf(&b, "; permits end %v:", p.rowsEnd)
		for _, r := range p.rows {
			fmt.Fprintf(&b, " [%d at %v", r.permits, r.at)
			if r.owner != nil {
				fmt.Fprintf(&b, " by %s", r.owner.name)
			}
			b.WriteString("]")
		}
	}
	return b.String()
}

// call is one operation under way in the model: the state that it changes, who
// calls, and when.
type call struct {
	*state
	second *state // of the other limiter, where there are two
	who    *actor
	now    span
	unsure bool // something ends just now: the answer is not certain

	miscounted bool // rows were taken for permits, and their numbers differ
}

// pair returns the keys in use, by the limiter's type.
func (c *call) pair() *pair { return c.pairOf(c.config["type"]) }

func (c *call) pairOf(kind string) *pair {
	if kind == "1" {
		return c.pairs[c.who.id]
	}
	return c.pairs[""]
}

// own returns both pairs that the caller knows of.
func (c *call) own() []*pair { return []*pair{c.pairs[""], c.pairs[c.who.id]} }

func (c *call) after(ms int64) span { return c.now.add(ms) }

// past tells whether a moment has come.
func (c *call) past(at span) bool {
	if at.to > c.now.from && at.from <= c.now.to {
		c.unsure = true
	}
	return at.to <= c.now.to
}

// split parts rows into those that have run out and the rest.
func (c *call) split(rows []row, interval int64) (out, rest []row) {
	for _, r := range rows {
		if c.past(r.at.add(interval)) {
			out = append(out, r)
		} else {
			rest = append(rest, r)
		}
	}
	return out, rest
}

// grant takes permits: a new row, and that much less of the value.
func (c *call) grant(p *pair, permits int64) {
	// Redisson packs any number into 32 bits.
	p.rows = append(p.rows, row{layout: c.who.layout, permits: int64(uint32(permits)), at: c.now, owner: c.who})
	p.value -= permits
}

func (c *call) setConfig(cfg rateConfig) {
	c.config = map[string]string{
		"rate":          strconv.FormatInt(cfg.rate, 10),
		"interval":      strconv.FormatInt(cfg.interval, 10),
		"type":          cfg.kind,
		"keepAliveTime": strconv.FormatInt(cfg.keepAlive, 10),
	}
}

// rateConfig is a rate as Redis holds it: times are milliseconds.
type rateConfig struct {
	kind                      string // 0: for all clients together, 1: for each
	rate, interval, keepAlive int64
}

// answer is what an operation told its caller: a text, and durations in
// milliseconds that are compared with what their range allows.
type answer struct {
	text  string
	times []span
}

func say(values ...any) answer {
	return answer{text: strings.TrimSuffix(fmt.Sprintln(values...), "\n")}
}

func (a answer) with(times ...span) answer {
	a.times = times
	return a
}

func (a answer) String() string {
	if len(a.times) == 0 {
		return a.text
	}
	return fmt.Sprint(a.text, " ", a.times)
}

func (a answer) same(want answer) bool {
	return a.text == want.text && slices.EqualFunc(a.times, want.times, func(got, want span) bool {
		return meets(got, want, tolerance)
	})
}

// What both libraries say, each in its own words.
const (
	notInitialized = "error: not initialized"
	exceedsRate    = "error: more than the rate"
	illegal        = "error: illegal argument"
	nilArithmetic  = "error: arithmetic on a nil value"

	// This module alone, beside a Redisson that keeps no set.
	unsupported = "error: unsupported"

	// Redisson alone, of some releases.
	nothingToUnpack = "error: bad argument to unpack"
	notDecoded      = "error: the reply is not decoded"
)

// The rest are the operations that are the same in both libraries, and what
// else can happen to a limiter.

func expire(c *call, end span) answer {
	there := c.config != nil
	if there {
		c.configEnd = end
	}
	for _, p := range c.own() {
		there = there || p.hasValue || len(p.rows) > 0
		p.expire(end)
	}
	c.expireKeys(c.now)
	return say(there)
}

func clearExpire(c *call) answer {
	had := c.configEnd != never
	c.configEnd = never
	for _, p := range c.own() {
		had = had || p.valueEnd != never || p.rowsEnd != never
		p.valueEnd, p.rowsEnd = never, never
	}
	return say(had)
}

func ttl(c *call) answer {
	switch {
	case c.config == nil:
		return say(-2)
	case c.configEnd == never:
		return say(-1)
	}
	return say("ms").with(span{c.configEnd.from - c.now.to, c.configEnd.to - c.now.from})
}

func exists(c *call) answer { return say(c.config != nil) }

func remove(c *call) answer {
	there := c.config != nil
	c.config, c.configEnd = nil, never
	for _, p := range c.own() {
		there = there || p.hasValue || len(p.rows) > 0
		p.del()
	}
	return say(there)
}

// sortRows puts rows in the order of a sorted set.
func sortRows(rows []row) {
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.at.to, b.at.to), strings.Compare(a.member, b.member))
	})
}
