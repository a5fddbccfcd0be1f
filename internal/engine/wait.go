package engine

import (
	"context"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
)

// grace is how much longer than its timeout a caller waits for the answer to a
// question that is under way, where that does not wait for replicas.
const grace = 100 * time.Millisecond

// await waits for the answer, for the caller's patience or for ctx to end.
func (g *group) await(ctx context.Context, r *request) (answer, error) {
	look := time.Time{}
	if !r.watched() {
		look = g.engine.clock.Machine(r.since).Add(g.engine.conn.Timeout())
		if end := g.engine.clock.Machine(r.deadline); end.Before(look) {
			look = end
		}
	}
	unanswered := false
	leave := func() (left bool) {
		left, unanswered = g.abandon(r)
		return left
	}
	answered, err := r.Await(ctx, &g.mu, leave, look, func() (time.Time, bool, error) { return g.timeUp(r) })
	if answered {
		return r.answer, r.answer.err
	}
	return answer{unanswered: unanswered}, err
}

// abandon takes a request back whose caller goes away. What it is granted
// nevertheless goes back. left is false if the answer is there; unanswered reports
// whether Redis had said nothing.
func (g *group) abandon(r *request) (left, unanswered bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.State == lane.Answered {
		return false, false
	}
	unanswered = !r.refused && !r.inLine
	g.withdraw(r)
	return true, unanswered
}

// withdraw is abandon for a request that has no answer. g.mu is held.
func (g *group) withdraw(r *request) {
	r.byBatch = r.State == lane.Sent
	r.State = lane.Gone
	switch {
	case r.byBatch:
	case r.inLine:
		g.line.remove(r)
		g.next(g.engine.clock.Now())
	default:
		if g.left++; g.left > len(g.gathered)/2 {
			g.gathered = slices.DeleteFunc(g.gathered, func(r *request) bool { return r.State != lane.Gathered })
			g.left = 0
		}
	}
}

// timeUp looks whether the caller's time is over: the timeout of one that waits for
// permits, or the time for the answer to a question. Where it is, the request has
// been taken back; else look is when to look again, zero where the answer is there.
func (g *group) timeUp(r *request) (look time.Time, left bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if r.State == lane.Answered {
		return time.Time{}, false, nil
	}
	here := g.engine.clock.At(now)
	over, deadline := r.overdue(here), g.engine.clock.Machine(r.deadline)
	if r.State == lane.Gathered && r.inLine {
		if !over {
			return deadline, false, nil
		}
		if g.asksLast(r, here) {
			return deadline.Add(g.engine.grace), false, nil
		}
		g.withdraw(r)
		return time.Time{}, true, nil
	}
	if end := g.engine.answerBy(r.asked.Add(g.engine.conn.Timeout()), deadline); now.Before(end) {
		return end, false, nil
	}
	if !r.refused || !over {
		err = lane.NoAnswer(now.Sub(r.asked), r.State == lane.Sent)
	}
	g.withdraw(r)
	return time.Time{}, true, err
}

// asksLast reports whether a request in line whose caller's patience has just ended is
// asked for a last time: the line is to ask at this moment. g.mu is held.
func (g *group) asksLast(r *request, now time.Time) bool {
	if g.round != nil || !g.line.stillAsks(r) || !now.Before(r.deadline.Add(g.engine.grace)) {
		return false
	}
	g.next(now)
	return true
}

// answerBy is when a caller that has until deadline, zero for ever, no longer waits
// for the answer to a question that must come by end.
func (e *Engine) answerBy(end, deadline time.Time) time.Time {
	if last := deadline.Add(e.grace); !deadline.IsZero() && last.Before(end) {
		return last
	}
	return end
}

// Expire ends a request that has waited for an answer for too long. One in line
// does not wait for one: its rounds are watched.
func (r *request) Expire(now time.Time) {
	g := r.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.inLine || r.State > lane.Sent {
		return
	}
	if now.Before(r.asked.Add(g.engine.conn.Timeout())) {
		g.engine.mu.Lock()
		g.engine.watch.Add(&r.Pending, r, r.asked)
		g.engine.mu.Unlock()
		return
	}
	sent := r.State == lane.Sent
	g.withdraw(r)
	r.tell(answer{err: lane.NoAnswer(now.Sub(r.asked), sent)})
}

// watchRound sees to it that those in line learn in time that the round which is
// due is not answered. g.mu is held.
func (g *group) watchRound() {
	timeout := g.engine.conn.Timeout()
	g.roundEnd = time.Now().Add(timeout)
	g.watch = restart(g.watch, timeout, g.roundOver)
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
				r.tell(answer{err: lane.NoAnswer(timeout, true)})
			}
		}
		return
	}
	g.roundEnd = time.Time{}
	if !g.listed || !g.line.due(g.engine.clock.At(now)) {
		return
	}
	for r := range g.line.all() {
		g.line.drop(r)
		r.tell(answer{err: lane.NoAnswer(timeout, false)})
	}
}
