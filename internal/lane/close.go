package lane

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Close fails what has gathered, by fail, which may be nil, and by the Close method that a Source may have, under the lock.
// It returns when nothing that was counted in is under way, or ctx ends.
func (l *Lanes) Close(ctx context.Context, fail func()) error {
	l.Mu.Lock()
	if !l.Closed {
		l.Closed = true
		l.Count(1)
		if fail != nil {
			fail()
		}
		l.only.close()
		for _, lane := range *l.all.Load() {
			lane.close()
		}
		l.Count(-1)
	}
	l.Mu.Unlock()
	return Wait(ctx, l.over, time.Time{})
}

func (l *Lane) close() {
	for _, s := range l.ready {
		if s, ok := s.(interface{ Close() }); ok {
			s.Close()
		}
	}
}

// Count counts work in for which Close waits, or out if n is below 0. The lock is held.
func (l *Lanes) Count(n int) {
	l.Work += n
	if l.Closed && l.Work == 0 {
		close(l.over)
	}
}

// Begin counts a call in, unless the Lanes are closed. End counts it out.
func (l *Lanes) Begin() error {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if l.Closed {
		return limit.ErrClosed
	}
	l.Count(1)
	return nil
}

// End ends what Begin began.
func (l *Lanes) End() {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.Count(-1)
}
