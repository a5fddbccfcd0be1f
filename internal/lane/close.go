package lane

import (
	"context"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// closed is added to how much is under way once the Lanes are closed.
const closed = 1 << 62

// Closed reports whether calls of callers fail.
func (l *Lanes) Closed() bool { return l.work.Load() >= closed }

// Close fails what has gathered, by fail, which may be nil, and by the Close method that a Source may have. It returns when
// nothing that was counted in is under way, or ctx ends.
func (l *Lanes) Close(ctx context.Context, fail func()) error {
	for {
		work := l.work.Load()
		if work >= closed {
			break
		}
		if !l.work.CompareAndSwap(work, work+closed+1) {
			continue
		}
		for _, lane := range l.lanes() {
			lane.close()
		}
		if fail != nil {
			fail()
		}
		l.Count(-1)
		break
	}
	return Wait(ctx, l.over, time.Time{})
}

func (l *Lane) close() {
	l.mu.Lock()
	ready := slices.Clone(l.ready)
	l.mu.Unlock()
	for _, s := range ready {
		if s, ok := s.(interface{ Close() }); ok {
			s.Close()
		}
	}
}

// Count counts work in for which Close waits, or out if n is below 0. Something else is counted in meanwhile.
func (l *Lanes) Count(n int) {
	if l.work.Add(int64(n)) == closed {
		l.ended.Do(func() { close(l.over) })
	}
}

// Begin counts a call in, unless the Lanes are closed. End counts it out.
func (l *Lanes) Begin() error {
	if l.work.Add(1) > closed { // without a loop, in which many would wait for each other
		l.End()
		return limit.ErrClosed
	}
	return nil
}

// End ends what Begin began.
func (l *Lanes) End() { l.Count(-1) }

// Work returns how much is counted in.
func (l *Lanes) Work() int { return int(l.work.Load() &^ closed) }
