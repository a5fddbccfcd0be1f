// Package model says in plain Go what calls do to a limiter.
//
// Grants are the permits in use, with the rules that hold for all callers: which permits have run out, how many are free and
// when more will be, whose permits a release takes. [State] is all that Redis holds of a limiter, to the byte; a [Module] is
// what this module decides of it, a [Release] what a release of Redisson does, each of its defects included. Package linear
// reckons with Grants alone, for many calls at once.
package model

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"

	"github.com/rratelimiter/rratelimiter/codec"
)

// A Grant is permits in use that were granted together.
type Grant struct {
	At      int64 `json:"at"`           // ms
	By      int   `json:"by,omitempty"` // the Client
	Permits int64 `json:"permits"`
	Own     int   `json:"-"` // the reservation that has the member to itself until it is settled
	Early   int64 `json:"-"` // ms that it is dated before the grant, if it is held until then
}

// Grants are those of one limiter, the oldest first.
type Grants []Grant

// InUse returns their permits.
func (all Grants) InUse() (sum int64) {
	for _, g := range all {
		sum += g.Permits
	}
	return sum
}

// Settled returns those that have not run out.
func (all Grants) Settled(interval, now int64) Grants {
	out := func(g Grant) bool { return g.At+interval <= now }
	if !slices.ContainsFunc(all, out) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), out)
}

// Ready returns when that many permits are free, of which free are now; false if all would not do.
func (all Grants) Ready(free, permits, interval, now int64) (at int64, ok bool) {
	if free >= permits {
		return now, true
	}
	for _, g := range all {
		if free += g.Permits; free >= permits {
			return g.At + interval, true
		}
	}
	return 0, false
}

// Full returns when all permits are free.
func (all Grants) Full(interval, now int64) int64 {
	if len(all) == 0 {
		return now
	}
	return all[len(all)-1].At + interval
}

// NewestFirst returns in which order a release takes permits off them: first off those
// of the Client itself, then off others', each time the newest first.
func (all Grants) NewestFirst(by int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, own := range []bool{true, false} {
			for i, g := range slices.Backward(all) {
				if own == (g.By == by) && !yield(i) {
					return
				}
			}
		}
	}
}

// A State is what Redis holds of one limiter. Times are epoch milliseconds; 0, as the end of a key, is never.
type State struct {
	Config    map[string]string `json:"config,omitempty"` // the hash; nil if there is none
	ConfigEnd int64             `json:"ttl,omitempty"`
	Pairs     map[string]*Pair  `json:"pairs"` // by the client's id; "" is the pair that all share
}

// A Pair is a value key and its set of permits in use.
type Pair struct {
	HasValue bool  `json:"there,omitempty"`
	Value    int64 `json:"value,omitempty"`
	ValueEnd int64 `json:"valueTTL,omitempty"`
	Rows     []Row `json:"permits,omitempty"` // in the order of the set; empty if there is none
	RowsEnd  int64 `json:"permitsTTL,omitempty"`
}

// A Row is a member of a set, with its score.
type Row struct {
	Grant

	Member Member       `json:"member"`
	Layout codec.Layout `json:"layout"`
}

// A Member is the bytes of one; "" if only its writer knows its id yet.
type Member string

// MarshalText returns it in hex.
func (m Member) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, []byte(m)), nil }

// UnmarshalText is the reverse of MarshalText.
func (m *Member) UnmarshalText(text []byte) error {
	packed, err := hex.DecodeString(string(text))
	*m = Member(packed)
	return err
}

// ID returns what of the member stays when permits are taken off it.
func (m Member) ID() string {
	if m.Twice() {
		return string(m[:9] + m[13:16])
	}
	return string(m[:len(m)-4])
}

// Twice reports whether the member holds its permits twice, as this module writes layout C.
func (m Member) Twice() bool { return len(m) == 20 && m[9:13] == m[16:] }

// RowOf returns the row of a member as Redis holds it.
func RowOf(member string, at int64) (Row, error) {
	parsed, err := codec.Parse(member)
	return Row{Grant: Grant{At: at, Permits: int64(parsed.Permits)}, Member: Member(member), Layout: parsed.Layout}, err
}

// lessened returns the row with that many permits; the zero Row if there are none.
func (r Row) lessened(permits int64) Row {
	if permits == 0 {
		return Row{}
	}
	if r.Permits = permits; r.Member == "" {
		return r
	}
	text := Member(binary.LittleEndian.AppendUint32(nil, uint32(permits)))
	if r.Member.Twice() {
		r.Member = r.Member[:9] + text + r.Member[13:]
	}
	r.Member = r.Member[:len(r.Member)-4] + text
	return r
}

// NewState returns one of which Redis holds nothing, for clients of these ids.
func NewState(ids ...string) *State {
	s := &State{Pairs: map[string]*Pair{"": {}}}
	for _, id := range ids {
		s.Pairs[id] = &Pair{}
	}
	return s
}

// Clone returns a copy.
func (s *State) Clone() *State {
	c := &State{Config: maps.Clone(s.Config), ConfigEnd: s.ConfigEnd, Pairs: make(map[string]*Pair, len(s.Pairs))}
	for id, p := range s.Pairs {
		copied := *p
		copied.Rows = slices.Clone(p.Rows)
		c.Pairs[id] = &copied
	}
	return c
}

func (s *State) number(field string) int64 {
	n, err := strconv.ParseInt(s.Config[field], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Rate returns the configured rate, 0 if there is none.
func (s *State) Rate() int64 { return s.number("rate") }

// Interval returns the configured interval.
func (s *State) Interval() int64 { return s.number("interval") }

// KeepAlive returns the configured keep-alive time.
func (s *State) KeepAlive() int64 { return s.number("keepAliveTime") }

// PerClient reports whether each client has a pair of its own.
func (s *State) PerClient() bool { return s.Config["type"] == perClient }

// set is Redis' SET: the key lives for ever again.
func (p *Pair) set(value int64) { p.HasValue, p.Value, p.ValueEnd = true, value, 0 }

// expire is PEXPIRE of both keys, if they exist.
func (p *Pair) expire(end int64) {
	if p.HasValue {
		p.ValueEnd = end
	}
	if len(p.Rows) > 0 {
		p.RowsEnd = end
	}
}

// SetRows replaces the set's members; a set without any is gone, and its end with it.
func (p *Pair) SetRows(rows []Row) {
	p.Rows = rows
	if len(rows) == 0 {
		p.RowsEnd = 0
	}
}

// Del removes both keys.
func (p *Pair) Del() { *p = Pair{} }

// DelValue removes the value.
func (p *Pair) DelValue() { p.HasValue, p.Value, p.ValueEnd = false, 0, 0 }

func (p *Pair) there() bool { return p.HasValue || len(p.Rows) > 0 }

// Grants returns the permits in use, the oldest first.
func (p *Pair) Grants() Grants { return grants(p.Rows) }

func grants(rows []Row) Grants {
	all := make(Grants, len(rows))
	for i, r := range rows {
		all[i] = r.Grant
	}
	return all
}

func sum(rows []Row) int64 { return grants(rows).InUse() }

// Broken returns the fault of a pair of a limiter of that rate, at any moment, "" if there is none; exact if no permits may have leaked.
func (p *Pair) Broken(rate int64, exact bool) string {
	switch both := p.Value + sum(p.Rows); {
	case !p.HasValue && len(p.Rows) > 0:
		return "a set without a value"
	case p.HasValue && p.Value > rate:
		return "a value above the rate"
	case exact && p.HasValue && both != rate:
		return fmt.Sprintf("value and permits in use are %d, not the rate", both)
	}
	return ""
}

// ExpireKeys removes the keys that have come to their end by now.
func (s *State) ExpireKeys(now int64) {
	gone := func(end int64) bool { return end != 0 && end <= now }
	if gone(s.ConfigEnd) {
		s.DelConfig()
	}
	for _, p := range s.Pairs {
		if gone(p.ValueEnd) {
			p.DelValue()
		}
		if gone(p.RowsEnd) {
			p.SetRows(nil)
		}
	}
}

// DelConfig removes the configuration.
func (s *State) DelConfig() { s.Config, s.ConfigEnd = nil, 0 }

// Pass lets that many milliseconds pass, by moving the state back in time.
func (s *State) Pass(ms, now int64) {
	s.ExpireKeys(now + ms)
	for _, at := range s.times() {
		*at -= ms
	}
}

// Round rounds all times to multiples of a unit from a base on, which is 0 then. It returns the most that one was off.
func (s *State) Round(base, unit int64) (off int64) {
	for _, at := range s.times() {
		exact := *at - base
		*at = Round(exact, unit)
		off = max(off, exact-*at, *at-exact)
	}
	s.Sort()
	return off
}

// Round returns the multiple of a unit that is nearest.
func Round(ms, unit int64) int64 {
	half := unit / 2
	if ms < 0 {
		half = -half
	}
	return (ms + half) / unit * unit
}

// times returns the times of all rows, and of keys that have an end.
func (s *State) times() []*int64 {
	times := s.ends()
	for _, p := range s.Pairs {
		for i := range p.Rows {
			times = append(times, &p.Rows[i].At)
		}
	}
	return times
}

// ends returns those of all keys that have one.
func (s *State) ends() []*int64 {
	ends := []*int64{&s.ConfigEnd}
	for _, p := range s.Pairs {
		ends = append(ends, &p.ValueEnd, &p.RowsEnd)
	}
	return slices.DeleteFunc(ends, func(end *int64) bool { return *end == 0 })
}

// OnEdge reports whether something ends just now, for any of the intervals, or is dated to now beside what is dated in the
// future: what is asked of the limiter then has no certain answer by a clock that goes on.
func (s *State) OnEdge(now int64, intervals ...int64) bool {
	edge := slices.ContainsFunc(s.ends(), func(end *int64) bool { return *end == now })
	for _, p := range s.Pairs {
		current, future := false, false
		for _, r := range p.Rows {
			current, future = current || r.At == now, future || r.At > now
			edge = edge || slices.ContainsFunc(intervals, func(interval int64) bool { return r.At+interval == now })
		}
		edge = edge || current && future
	}
	return edge
}

// Sort puts all rows in the order of their sets.
func (s *State) Sort() {
	for _, p := range s.Pairs {
		sortRows(p.Rows)
	}
}

// sortRows puts rows in the order of a sorted set.
func sortRows(rows []Row) {
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Member, b.Member))
	})
}
