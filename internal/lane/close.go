package lane

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// closed is added to how much is under way once the Lanes are closed.
const closed = 1 << 62

// Closed reports whether calls of callers fail. What those count in who find it false under a lane's lock, Close fails or
// waits for.
func (l *Lanes) Closed() bool { return l.work.Load() >= closed }

// Close fails what has gathered, by fail, which may be nil, and by the Close method that a Source may have, under the lock
// of its lane. It returns when nothing that was counted in is under way, or ctx ends.
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
			lane.Lock() // those who found the Lanes open have counted themselves in by then
			lane.close()
			lane.Unlock()
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
	for _, s := range l.ready {
		if s, ok := s.(interface{ Close() }); ok {
			s.Close()
		}
	}
}

// Count counts work in for which Close waits, or out if n is below 0. Either something else is counted in meanwhile, or a
// lane's lock has been held since Closed was false.
func (l *Lanes) Count(n int) {
	if l.work.Add(int64(n)) == closed {
		close(l.over)
	}
}

// Begin counts a call in, unless the Lanes are closed. End counts it out.
func (l *Lanes) Begin() error {
	for {
		work := l.work.Load()
		if work >= closed {
			return limit.ErrClosed
		}
		if l.work.CompareAndSwap(work, work+1) {
			return nil
		}
	}
}

// End ends what Begin began.
func (l *Lanes) End() { l.Count(-1) }

// Work returns how much is counted in.
func (l *Lanes) Work() int { return int(l.work.Load() &^ closed) }
