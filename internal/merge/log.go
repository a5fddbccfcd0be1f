// Package merge knows which members of a limiter's set the program may merge into one, so that the set does not grow with
// the limit: those that it was granted in one slice of the interval. See lua/merge.lua.
package merge

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	slicesOf   = 64   // an interval has so many: a permit comes back at most one of them late
	longest    = 32   // slices after which a settlement finds no member of its slice
	maxEntries = 1024 // as many as several hundred callers of claims are granted in two round trips
	eighths    = 8    // of an interval, in which grants are counted
)

// thresholds are below what members are left alone. A set has then at most one member a slice of a program's, those
// that it leaves alone and those that it has not named yet: fewer than the 128 that Redis keeps in a listpack.
type thresholds struct {
	rate     int64 // of limiters whose members are all left alone
	few      int   // of an interval
	first    uint8 // grants that are not worth a Log, nor to ask for the interval
	together uint8 // members that are named at once, beside those that stand for others
}

var usual = thresholds{rate: 128, few: 32, first: 8, together: 20}

var limits = usual

// Everything makes all members be merged as soon as there are two, for tests. AsUsual undoes that.
func Everything() { limits = thresholds{together: 2} }

// AsUsual is for tests of when members are merged.
func AsUsual() { limits = usual }

// Merges counts the members that have come to stand for others: a test of merging in which none has says nothing.
var Merges atomic.Int64

// LeftAlone reports whether the members of limiters of that rate are not merged.
func LeftAlone(rate int64) bool { return rate <= limits.rate }

// IsWorthALog reports whether a limiter with so many grants is.
func IsWorthALog(grants int32) bool { return grants > int32(limits.first) }

// Log is what a program knows of its last members in one limiter's set. There may be one for each of a million keys, so it
// is small: numbers that only grow are kept without their first bits.
type Log struct {
	mu       sync.Mutex
	interval int64           // ms; 0 until it is known
	offset   int32           // how much the server's clock is ahead of this one, in ms
	newest   uint32          // slice
	eighth   uint32          // the last with a grant
	refused  uint32          // the eighth in which the server refused a call, for an interval; otherwise 0
	grants   [eighths]uint8  // of the last eighths
	high     [highBytes]byte // how the entries' ids go on behind what is the client's
	fresh    uint8           // entries that no call has named yet, of as many as count
	reach    uint8           // slices between the newest and one in which a settlement ended lately
	exact    bool            // members are left alone
	last     state           // of the last call
	entries  []entry
	members  []*Member // of the entries; nil if there is none at all
}

// state is how a call stands.
type state uint8

const (
	ended state = iota
	missed
	underWay
)

// Bytes is about how much memory a Log takes beside its key.
const Bytes = 300

// Learn records the limiter's rate, if that is known.
func (l *Log) Learn(rate int64, interval time.Duration) {
	if rate <= 0 || interval < time.Millisecond {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.learn(rate, interval.Milliseconds())
}

func (l *Log) learn(rate, interval int64) {
	if l.interval != interval || LeftAlone(rate) {
		l.refused = 0
		l.forget()
	}
	l.exact = LeftAlone(rate) || l.refused > 0
	if l.interval != interval {
		early := l.grants[0]
		l.interval, l.reach, l.grants = interval, 0, [eighths]uint8{}
		l.count(time.Now().UnixMilli(), early)
	}
}

// learnOffset sets the offset. The newest slice is as long ago as before.
func (l *Log) learnOffset(ms int32) {
	if l.interval > 0 {
		l.newest += uint32(int64(ms-l.offset) * slicesOf / l.interval)
	}
	l.offset = ms
}

// Add records a member that was granted at that time, and that is no call's any more. m is what its grants share, if
// some of them may go back. Add reports whether it is time for [Log.Name], and whether [Log.Learn] would help.
func (l *Log) Add(member []byte, permits int64, at time.Time, m *Member) (due, asks bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ms := at.UnixMilli()
	before := l.count(ms, 1)
	if l.refused > 0 && l.eighth-l.refused > eighths {
		l.refused, l.exact = 0, false
	}
	switch low := l.exact && l.refused == 0; {
	case l.interval == 0:
		return false, l.grants[0] >= limits.first
	case low && before > int(limits.rate): // it is another by now
		return false, true
	case l.exact || before < limits.few:
		return false, false
	}
	slice := uint32((ms + int64(l.offset)) * slicesOf / l.interval)
	if late := int32(l.newest - slice); late > 0 && late <= slicesOf {
		l.reach = max(l.reach, uint8(min(late, longest)))
	} else { // or the clock was set back
		l.newest = slice
	}
	e, high := entryOf(member, permits)
	if high != l.high {
		l.forget()
		l.high = high
	}
	e.setSlice(uint8(slice))
	if len(l.entries) < maxEntries { // while a call takes long
		l.put(e, m)
		l.fresh = min(l.fresh, 254) + 1
	}
	return l.due(), false
}

// Due reports whether it is time for [Log.Name].
func (l *Log) Due() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.due()
}

func (l *Log) due() bool {
	return (l.fresh >= limits.together || len(l.entries) >= maxEntries) && l.last != underWay
}

// count counts grants, and returns how many an interval has had before.
func (l *Log) count(ms int64, grants uint8) (before int) {
	if l.interval == 0 {
		l.grants[0] = min(l.grants[0]+grants, limits.first)
		return 0
	}
	now := uint32(ms * eighths / l.interval)
	if passed := int32(now - l.eighth); passed < -eighths || passed > 0 {
		for i := range min(uint32(passed), eighths) {
			l.grants[(now-i)%eighths] = 0
		}
		l.eighth = now
	}
	for _, n := range l.grants {
		before += int(n)
	}
	last := &l.grants[l.eighth%eighths]
	*last = min(*last, 255-grants) + grants
	return before
}

func (l *Log) forget() { l.entries, l.members, l.fresh = nil, nil, 0 }

// takeAll takes all entries out, and returns them with the Member of each, nil for those that have none.
func (l *Log) takeAll() (entries []entry, members []*Member) {
	entries, members = l.entries, l.members
	if members == nil {
		members = make([]*Member, len(entries))
	}
	l.entries, l.members = nil, nil
	return entries, members
}

func (l *Log) put(e entry, m *Member) {
	if m != nil && l.members == nil {
		l.members = make([]*Member, len(l.entries), max(len(l.entries)+1, int(limits.together)+2))
	}
	if l.members != nil {
		l.members = append(l.members, m)
	}
	if n := len(l.entries); n == cap(l.entries) { // append would double it
		l.entries = slices.Grow(l.entries, max(4, n/4))
	}
	l.entries = append(l.entries, e)
}

// age is how many slices an entry's is before the newest; it may be below 0.
func (l *Log) age(e entry) int { return int(int8(uint8(l.newest) - e.slice())) }

// keep puts an entry back that may be merged with later ones.
func (l *Log) keep(e entry, m *Member) {
	if l.age(e) <= int(l.reach)+1 && !m.gone() {
		l.put(e, m)
	}
}
