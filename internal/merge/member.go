package merge

import (
	"sync"
	"time"
)

// Member is a member of several grants. Merged into another it becomes that one, also for its grants. Its permits go
// back in one call at a time, so that a repeated call can tell by the permits that are left whether it has run. A Log keeps
// one for each grant that may go back, so it is small.
type Member struct {
	mu        sync.Mutex
	into      *Member
	waiting   *Return
	remaining int64        // permits, when last seen
	bytes     [length]byte // without the right permits
	size      uint8        // of the bytes: members of other layouts are shorter
	busy      bool         // a call is under way that gives permits back
	named     bool         // a call is under way that may merge it
	doubtful  bool         // such a call may have merged it into another
	unsure    bool         // a call that gave permits back failed: it is not known how many are left
}

// Return is permits of a member that wait for the next call that gives some back.
type Return struct {
	Permits int64
	Sent    time.Time     // when the grant was asked for
	Done    chan struct{} // closed then
	Err     error         // set before
	next    *Return       // that waits, too
}

// NewMember returns a Member that was granted so many permits.
func NewMember(bytes []byte, permits int64) *Member {
	m := &Member{remaining: permits}
	m.size = uint8(copy(m.bytes[:], bytes))
	return m
}

// lock locks the member that m has become, and returns it.
func (m *Member) lock() *Member {
	for {
		m.mu.Lock()
		if m.into == nil {
			return m
		}
		next := m.into
		m.mu.Unlock()
		m = next
	}
}

// Add adds permits that are to go back. If it returns a Member, the caller must give back what waits, by [Member.Next]
// until that has nothing more.
func (m *Member) Add(r *Return) (start *Member) {
	m = m.lock()
	defer m.mu.Unlock()
	r.next, m.waiting = m.waiting, r
	return m.start()
}

// start returns the member if a call is to begin that gives permits back. It is locked.
func (m *Member) start() *Member {
	if m.busy || m.named || m.waiting == nil {
		return nil
	}
	m.busy = true
	return m
}

// Next returns what waits to go back, and the member as it was last seen. With nothing, the call is no longer under way.
func (m *Member) Next() (bytes []byte, permits int64, all []*Return) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ; m.waiting != nil; m.waiting = m.waiting.next {
		all = append(all, m.waiting)
	}
	m.busy = len(all) > 0
	return m.bytes[:m.size], m.remaining, all
}

// WentBack records that so many permits have gone back, and the error of the call. It reports whether the member may
// have become another.
func (m *Member) WentBack(permits int64, err error) (doubtful bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.remaining -= permits
	m.unsure = m.unsure || err != nil
	return m.doubtful
}

// name makes the member one that a call may merge, if it has no more permits than that. It returns how many.
func (m *Member) name(most int64) (permits int64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy || m.doubtful || m.unsure || m.waiting != nil || m.remaining <= 0 || m.remaining > most {
		return 0, false
	}
	m.named = true
	return m.remaining, true
}

// gone reports whether all permits of the member, which may be nil, have gone back.
func (m *Member) gone() bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.remaining <= 0 && !m.busy && m.waiting == nil
}

// end says that no call merges the member any more, which may be nil. It appends to start what [Member.Add] returns.
func (m *Member) end(start []*Member, doubtful bool) []*Member {
	if m == nil {
		return start
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.named, m.doubtful = false, m.doubtful || doubtful
	if m = m.start(); m != nil {
		start = append(start, m)
	}
	return start
}

// become says that the member, which may be nil, was merged into another, which is named still.
func (m *Member) become(into *Member) {
	if m == nil {
		return
	}
	m.mu.Lock()
	waiting := m.waiting
	m.into, m.waiting = into, nil
	m.mu.Unlock()
	into.mu.Lock()
	defer into.mu.Unlock()
	for waiting != nil {
		r := waiting
		waiting = r.next
		r.next, into.waiting = into.waiting, r
	}
}

// stands says that the member stands for a group now.
func (m *Member) stands(g group, start []*Member) []*Member {
	m.mu.Lock()
	copy(m.bytes[:], g.into)
	m.remaining = g.sum
	m.mu.Unlock()
	return m.end(start, false)
}
