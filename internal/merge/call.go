package merge

import (
	"encoding/binary"
	"slices"
	"time"
)

// maxPermits is the most that one member holds: Redisson packs them in 32 bits.
const maxPermits = 1<<32 - 1

// Call names members to lua/merge.lua, in groups.
type Call struct {
	log    *Log
	high   [highBytes]byte
	groups []group

	Missed bool // a group was not as it was named
}

// group is members of one slice, as far as is known.
type group struct {
	entries []entry
	members []*Member // of the entries
	sum     int64     // of their permits
	into    []byte    // the member that is to stand for all
}

// Name returns a call that merges members, nil if there are none to merge. draw returns a new member of the client,
// with no permits on it yet. Until the Call has ended there is no other. After one that has Missed a group it names only
// what that has seen: newer members may have changed since, as permits are released off the newest. Of the Members in start
// permits wait to go back: see [Member.Add].
func (l *Log) Name(draw func() []byte) (c *Call, start []*Member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == underWay {
		return nil, nil
	}
	entries, members := l.takeAll()
	seen := len(entries)
	if l.last == missed {
		seen -= min(int(l.fresh), seen)
	}
	order := make([]int, seen)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return l.age(entries[i]) - l.age(entries[j]) })
	if seen == len(entries) {
		l.fresh = 0
	}
	c = &Call{log: l, high: l.high}
	for len(order) > 0 {
		n := 1
		for n < len(order) && entries[order[n]].slice() == entries[order[0]].slice() {
			n++
		}
		var g group
		if n > 1 {
			g = group{entries: make([]entry, 0, n), members: make([]*Member, 0, n)}
		}
		for _, i := range order[:n] {
			if e, m := entries[i], members[i]; n == 1 || !g.add(e, m) {
				l.keep(e, m)
			}
		}
		switch {
		case len(g.entries) > 1:
			g.into = draw()
			binary.LittleEndian.PutUint32(g.into[length-4:], uint32(g.sum))
			c.groups = append(c.groups, g)
		case len(g.entries) == 1:
			l.keep(g.entries[0], g.members[0])
			start = g.members[0].end(start, false)
		}
		order = order[n:]
	}
	for i, e := range entries[seen:] {
		l.put(e, members[seen+i])
	}
	if l.last = ended; len(c.groups) == 0 {
		return nil, start
	}
	l.last = underWay
	return c, start
}

// add adds a member to the group. It returns false if the member is in use otherwise, or there is no room.
func (g *group) add(e entry, m *Member) bool {
	permits, room := e.permits(), maxPermits-g.sum
	switch {
	case m != nil:
		var ok bool
		if permits, ok = m.name(room); !ok {
			return false
		}
		e.setPermits(permits)
	case slices.Contains(g.entries, e): // settled twice
		return true
	case permits > room:
		return false
	}
	g.sum += permits
	g.entries, g.members = append(g.entries, e), append(g.members, m)
	return true
}

// Append appends the arguments of the script that are about the members.
func (c *Call) Append(all []any) []any {
	all = append(all, limits.rate)
	for _, g := range c.groups {
		words := append(make([]byte, 0, length*(1+len(g.entries))), g.into...)
		for _, e := range g.entries {
			words = e.append(words, g.into, c.high)
		}
		all = append(all, words)
	}
	return all
}

// Answered records the script's answer to a call that was sent at that time, and ends the Call; doubtful says that an
// attempt before may have run.
func (c *Call) Answered(numbers []int64, sent time.Time, doubtful bool) (start []*Member) {
	l, now := c.log, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = ended
	if len(numbers) > 1 {
		l.learn(numbers[0], numbers[1])
	}
	if len(numbers) < 3 {
		return c.left(start, doubtful)
	}
	since, members := l.takeAll()
	defer func() { // what was granted since stands behind what was named, as in the set
		for i, e := range since {
			l.put(e, members[i])
		}
	}()
	l.learnOffset(int32(numbers[2] - sent.Add(now.Sub(sent)/2).UnixMilli()))
	numbers = numbers[3:]
	for i, g := range c.groups {
		switch {
		case len(numbers) == 0 || numbers[0] <= 0 && len(numbers) <= len(g.entries):
			rest := Call{groups: c.groups[i:]}
			return rest.left(start, doubtful)
		case numbers[0] > 0:
			start = l.merged(g, uint8(numbers[0]), start)
			numbers = numbers[1:]
			continue
		}
		c.Missed = true
		for j, slice := range numbers[1 : len(g.entries)+1] {
			e, m := g.entries[j], g.members[j]
			switch {
			case slice >= 0:
				e.setSlice(uint8(slice))
			case m == nil:
				e.setPermits(-slice) // others have released some
			default:
				slice = 0 // of the rest its grants may give back more than is left: it stays by itself
			}
			if slice != 0 && c.high == l.high { // the next call names it, however old it is
				l.put(e, m)
				l.last = missed
			}
			start = m.end(start, doubtful)
		}
		numbers = numbers[len(g.entries)+1:]
	}
	return start
}

// merged records that a group has become one member of that slice.
func (l *Log) merged(g group, slice uint8, start []*Member) []*Member {
	Merges.Add(1)
	var into *Member
	if i := slices.IndexFunc(g.members, func(m *Member) bool { return m != nil }); i >= 0 {
		into = g.members[i]
		for _, m := range g.members[i+1:] {
			m.become(into)
		}
		start = into.stands(g, start)
	}
	e, high := entryOf(g.into, g.sum)
	if e.setSlice(slice); high == l.high {
		l.keep(e, into)
	}
	return start
}

// left ends a call whose members were left alone; doubtful says that an attempt of it may still merge them.
func (c *Call) left(start []*Member, doubtful bool) []*Member {
	for _, g := range c.groups {
		for _, m := range g.members {
			start = m.end(start, doubtful)
		}
	}
	return start
}

// Failed ends a call that may have run or not. Its members are left alone from now on, and with refused all others, too,
// for an interval.
func (c *Call) Failed(refused bool) (start []*Member) {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	c.log.last = ended
	if refused {
		c.log.exact, c.log.refused = true, c.log.eighth
		c.log.forget()
	}
	return c.left(nil, true)
}
