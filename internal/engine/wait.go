package engine

import (
	"context"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
)

// await waits for the answer, for the caller's patience or for ctx to end.
func (g *group) await(ctx context.Context, r *request) (Answer, error) {
	if !r.watched() {
		return g.awaitTimed(ctx, r)
	}
	select {
	case <-r.Done():
	case <-ctx.Done():
		if g.abandon(r) {
			g.engine.unwatch(g, r)
			return Answer{}, ctx.Err()
		}
	}
	return g.engine.finish(g, r)
}

// awaitTimed is await for a request with a time of its own.
func (g *group) awaitTimed(ctx context.Context, r *request) (Answer, error) {
	timer := time.NewTimer(time.Until(r.firstLook(g.engine.conn.Timeout())))
	defer timer.Stop()
	for {
		select {
		case <-r.Done():
			return g.engine.finish(g, r)
		case <-ctx.Done():
			if g.abandon(r) {
				g.engine.leave(g)
				return Answer{}, ctx.Err()
			}
		case <-timer.C:
			look, left, err := g.timeUp(r)
			if left {
				g.engine.leave(g)
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
	if end := r.since.Add(timeout); end.Before(r.deadline) {
		return end
	}
	return r.deadline
}

// abandon takes a request back whose caller goes away. What it is granted
// nevertheless goes back. It tells false where the answer is there.
func (g *group) abandon(r *request) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.State == lane.Answered {
		return false
	}
	g.withdraw(r)
	return true
}

// withdraw is abandon for a request that has no answer. g.mu is held.
func (g *group) withdraw(r *request) {
	sent := r.State == lane.Sent
	r.State = lane.Gone
	switch {
	case sent:
	case r.inLine:
		g.line.remove(r)
		g.next(time.Now())
	default:
		if g.left++; g.left > len(g.gathered)/2 {
			g.gathered = slices.DeleteFunc(g.gathered, func(r *request) bool { return r.State != lane.Gathered })
			g.left = 0
		}
	}
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
	r.tell(Answer{err: lane.NoAnswer(now.Sub(r.asked), sent)})
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
			g.withdraw(r)
			g.mu.Unlock()
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
	if !r.refused || !over {
		err = lane.NoAnswer(now.Sub(r.asked), r.State == lane.Sent)
	}
	g.withdraw(r)
	g.mu.Unlock()
	return time.Time{}, true, err
}
