package engine

import (
	"context"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
)

// await waits for the answer, for the caller's patience or for ctx to end.
func (g *group) await(ctx context.Context, r *request) (Answer, error) {
	timer := time.NewTimer(time.Until(r.firstLook(g.engine.conn.Timeout())))
	defer timer.Stop()
	for {
		select {
		case <-r.Done():
			g.engine.leave(g)
			return r.take()
		case <-ctx.Done():
			if left, _ := g.abandon(r); !left {
				continue
			}
			return Answer{}, ctx.Err()
		case <-timer.C:
			look, left, err := g.timeUp(r)
			if left {
				return Answer{}, err
			}
			if !look.IsZero() {
				timer.Reset(time.Until(look))
			}
		}
	}
}

// firstLook is when the caller looks for the first time whether its time is over.
func (r *request) firstLook(timeout time.Duration) time.Time {
	if end := r.since.Add(timeout); r.deadline.IsZero() || end.Before(r.deadline) {
		return end
	}
	return r.deadline
}

// abandon takes a request back whose caller goes away. What it is granted
// nevertheless goes back. left is false where the answer is there.
func (g *group) abandon(r *request) (left, sent bool) {
	g.mu.Lock()
	left, sent = g.abandonLocked(r)
	g.mu.Unlock()
	if left && !sent {
		g.engine.leave(g)
	}
	return left, sent
}

// abandonLocked is abandon with g.mu held. The caller of a request that was sent
// is counted out when that has landed.
func (g *group) abandonLocked(r *request) (left, sent bool) {
	switch r.State {
	case lane.Answered:
		return false, false
	case lane.Sent:
		r.State = lane.Gone
		return true, true
	}
	r.State = lane.Gone
	if r.inLine {
		g.line.remove(r)
		g.next(time.Now())
	} else if g.left++; g.left > len(g.gathered)/2 {
		g.gathered = slices.DeleteFunc(g.gathered, func(r *request) bool { return r.State == lane.Gone })
		g.left = 0
	}
	return true, false
}

// watchRound sees to it that those in line learn in time that the round which is
// due is not answered. g.mu is held.
func (g *group) watchRound(now time.Time) {
	timeout := g.engine.conn.Timeout()
	g.roundEnd = now.Add(timeout)
	if g.watch == nil {
		g.watch = time.AfterFunc(timeout, g.roundOver)
	} else {
		g.watch.Reset(timeout)
	}
}

// roundOver tells those in line that the round is not answered, or could not be
// sent.
func (g *group) roundOver() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.roundEnd.IsZero() || now.Before(g.roundEnd) {
		return
	}
	timeout := g.engine.conn.Timeout()
	if g.round != nil {
		for _, r := range g.round.requests {
			if r.State == lane.Sent && r.inLine {
				g.line.drop(r)
				r.tell(Answer{err: lane.NoAnswer(timeout, true)})
			}
		}
		return
	}
	g.roundEnd = time.Time{}
	if !g.listed || !g.line.due(now) {
		return
	}
	for r := range g.line.all() {
		g.line.drop(r)
		r.tell(Answer{err: lane.NoAnswer(timeout, false)})
	}
}

// timeUp looks whether the caller's time is over: the timeout of one that waits for
// permits, or the time for the answer to a question. Where it is, the request has
// been taken back; else look is when to look again, zero where something else will
// answer.
func (g *group) timeUp(r *request) (look time.Time, left bool, err error) {
	g.mu.Lock()
	now := time.Now()
	if r.State == lane.Answered {
		g.mu.Unlock()
		return time.Time{}, false, nil
	}
	over := r.overdue(now)
	if r.State == lane.Gathered && r.inLine {
		if !over {
			g.mu.Unlock()
			return r.deadline, false, nil
		}
		if g.round != nil || !g.line.stillAsks(r) || !now.Before(r.deadline.Add(grace)) {
			g.leaveLine(r)
			return time.Time{}, true, nil
		}
		// The line is to ask at this moment: r is asked for a last time.
		g.next(now)
		g.mu.Unlock()
		return r.deadline.Add(grace), false, nil
	}
	timeout := g.engine.conn.Timeout()
	end := r.asked.Add(timeout)
	if last := r.deadline.Add(grace); !r.deadline.IsZero() && last.Before(end) {
		end = last
	}
	if now.Before(end) {
		g.mu.Unlock()
		return end, false, nil
	}
	if _, sent := g.abandonLocked(r); !sent {
		defer g.engine.leave(g)
		err = lane.NoAnswer(now.Sub(r.asked), false)
	} else {
		err = lane.NoAnswer(now.Sub(r.asked), true)
	}
	if r.refused && over {
		err = nil
	}
	g.mu.Unlock()
	return time.Time{}, true, err
}

// leaveLine ends the wait of a request that was refused, or stood behind one that
// was. g.mu is held, and let go of.
func (g *group) leaveLine(r *request) {
	g.abandonLocked(r)
	g.mu.Unlock()
	g.engine.leave(g)
}
