package engine

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/limit"
)

// turns are what must not meet requests of the limiter whose outcome is in doubt:
// releases and migrations. Each waits until what is under way is finished, and
// holds back what gathers meanwhile; then requests have a turn. A group's lock
// guards its turns.
type turns struct {
	waiting []*turn
	now     bool                       // one is being done
	was     bool                       // the last one was not followed by requests yet
	behind  map[chan struct{}]struct{} // requests of several limiters that wait; closed when it is done
}

// turn is work that is done alone.
type turn struct {
	run     func(ctx context.Context, t *turn) error
	release bool // may take others' permits along
	group   *group
	permits int64 // to be released
	callers int
	sent    bool            // nobody can leave it any more
	since   time.Time       // when the last caller came
	heard   atomic.Bool     // a call of it was answered
	ctx     context.Context // for the Redis client's hooks
	done    chan struct{}
	err     error
}

// underWay is the error for a caller whose ctx ends while its call may be done.
func underWay(err error) error {
	return fmt.Errorf("%w: the call was under way: %w", limit.ErrUnknownOutcome, err)
}

// takeTurn has t done while no request of the limiter is on its way, and returns what
// came of it. Where ctx ends before its turn it is not done.
func (e *Engine) takeTurn(ctx context.Context, l *Limiter, t *turn) error {
	g, err := e.enter(ctx, l, nil)
	if err != nil {
		return err
	}
	defer e.leave(g)
	permits := t.permits
	t.ctx = context.WithoutCancel(ctx)
	if t.since.IsZero() {
		t.since = time.Now()
	}
	since := t.since
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return limit.ErrClosed
	}
	t.group = g
	t = g.turns.join(t)
	g.next(g.engine.clock.Now())
	g.mu.Unlock()

	timeout := e.conn.Timeout()
	timer := time.NewTimer(time.Until(since.Add(timeout)))
	defer timer.Stop()
	for {
		select {
		case <-t.done:
			return t.err
		case <-ctx.Done():
			if g.leaveTurn(t, permits) {
				return ctx.Err()
			}
			select {
			case <-t.done:
				return t.err
			default:
				return underWay(ctx.Err())
			}
		case <-timer.C:
			if g.leaveTurn(t, permits) {
				return lane.NoAnswer(timeout, false)
			}
			if t.since.After(since) && !t.heard.Load() {
				return lane.NoAnswer(timeout, true) // the turn has the time of those who came later
			}
		}
	}
}

// join adds a turn, or has another take it along, and returns the one that it is.
func (s *turns) join(t *turn) *turn {
	if t.release {
		for _, other := range s.waiting {
			if other.release && other.permits+t.permits <= maxRate {
				other.permits += t.permits
				other.callers++
				other.since = t.since
				return other
			}
		}
	}
	t.done, t.callers = make(chan struct{}), 1
	s.waiting = append(s.waiting, t)
	return t
}

// leaveTurn takes a caller's part of a turn back, unless that has begun.
func (g *group) leaveTurn(t *turn, permits int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.sent {
		return false
	}
	t.permits -= permits
	t.callers--
	if t.callers > 0 {
		return true
	}
	i := slices.Index(g.turns.waiting, t)
	if i < 0 {
		return true // it is its turn, and nothing will be done
	}
	g.turns.waiting = slices.Delete(g.turns.waiting, i, i+1)
	if !g.turnsBefore() {
		g.admit()
	}
	g.next(g.engine.clock.Now())
	return true
}

// startTurn has the next turn done, where nothing is under way.
func (g *group) startTurn(now time.Time) bool {
	s := &g.turns
	if s.now || len(s.waiting) == 0 || g.calls+g.returns > 0 || s.was && g.hasWork(now) {
		return s.now
	}
	// A lease that came while the turn waited: what is left of it is no turn's to
	// release.
	if g.endLeases(); g.returnUnused() {
		return true
	}
	t := s.waiting[0]
	s.waiting = slices.Delete(s.waiting, 0, 1)
	s.now = true
	g.engine.stay(g)
	go func() {
		defer g.engine.leave(g)
		err := g.engine.explain(g.keys.Names(), t.run(t.ctx, t))
		g.mu.Lock()
		defer g.mu.Unlock()
		t.err = err
		close(t.done)
		s.now, s.was = false, true
		g.admit()
		g.next(g.engine.clock.Now())
	}()
	return true
}

// begin notes that the first call of a turn is being sent, unless all its callers have
// gone.
func (t *turn) begin() bool {
	t.group.mu.Lock()
	defer t.group.mu.Unlock()
	t.sent = t.callers > 0
	return t.sent
}

// turnsBefore reports whether a request of several limiters that comes now waits for
// a turn.
func (g *group) turnsBefore() bool { return len(g.turns.waiting) > 0 || g.turns.now }

// admit lets those requests begin that have waited for a turn.
func (g *group) admit() {
	g.calls += len(g.turns.behind)
	for admitted := range g.turns.behind {
		close(admitted)
	}
	g.turns.behind = nil
}

// maxRate is the highest rate a limiter can count exactly.
const maxRate = 1<<53 - 1
