package engine

import (
	"context"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
)

// grace is how much longer than its timeout a caller waits for the answer to a
// question that is under way.
const grace = 100 * time.Millisecond

// await waits for the answer, for the caller's patience or for ctx to end.
func (g *group) await(ctx context.Context, r *request) (answer, error) {
	look := r.asked.Add(g.engine.conn.Timeout())
	if !r.deadline.IsZero() && r.deadline.Before(look) {
		look = r.deadline
	}
	timer := time.NewTimer(time.Until(look))
	defer timer.Stop()
	for {
		select {
		case <-r.Done():
			return r.take()
		case <-ctx.Done():
			g.mu.Lock()
			left, _ := g.abandon(r)
			g.mu.Unlock()
			if left {
				return answer{}, ctx.Err()
			}
		case <-timer.C:
			look, left, err := g.timeUp(r)
			if left {
				return answer{}, err
			}
			if !look.IsZero() {
				timer.Reset(time.Until(look))
			}
		}
	}
}

// abandon takes a request back whose caller goes away. What it is granted
// nevertheless goes back. left is false where the answer is there. g.mu is held.
func (g *group) abandon(r *request) (left, sent bool) {
	switch r.State {
	case lane.Answered:
		return false, false
	case lane.Sent:
		r.State = lane.Gone
		g.engine.stay(g) // until it lands
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
	over := r.overdue(now)
	if r.State == lane.Gathered && r.inLine {
		if !over {
			return r.deadline, false, nil
		}
		last := r.deadline.Add(grace)
		if g.round == nil && g.line.stillAsks(r) && now.Before(last) {
			g.next(now) // the line is to ask at this moment: r is asked for a last time
			return last, false, nil
		}
		g.abandon(r)
		return time.Time{}, true, nil
	}
	if end := answerBy(r.asked.Add(g.engine.conn.Timeout()), r.deadline); now.Before(end) {
		return end, false, nil
	}
	_, sent := g.abandon(r)
	if r.refused && over {
		return time.Time{}, true, nil
	}
	return time.Time{}, true, lane.NoAnswer(now.Sub(r.asked), sent)
}

// answerBy is when a caller that has until deadline, zero for ever, no longer waits
// for the answer to a question that must come by end.
func answerBy(end, deadline time.Time) time.Time {
	if last := deadline.Add(grace); !deadline.IsZero() && last.Before(end) {
		return last
	}
	return end
}

// watchRound sees to it that those in line learn in time that a question of theirs
// is not answered. g.mu is held.
func (g *group) watchRound() {
	g.watch = restart(g.watch, g.engine.conn.Timeout(), g.roundOver)
}

func (g *group) roundOver() {
	g.mu.Lock()
	defer g.mu.Unlock()
	timeout := g.engine.conn.Timeout()
	if g.round == nil || time.Since(g.round.sent) < timeout {
		return
	}
	for _, r := range g.round.requests {
		if r.State == lane.Sent && r.inLine {
			g.line.drop(r)
			r.tell(answer{err: lane.NoAnswer(timeout, true)})
		}
	}
}
