package lane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// maxErrands is how many errands one flight takes, so that they delay the decisions
// beside them by a millisecond or two at most.
const maxErrands = 128

// errand is a call that decides no request: one that reads, changes or gives back.
type errand struct {
	Pending // the lane's lock guards its State

	lane  *Lane
	call  Call
	timer *time.Timer                // ends it if no answer comes in time
	then  func(reply any, err error) // nil if a caller waits
	since time.Time                  // when its time began
	err   error
	left  bool // before the call was done
	seen  bool // an attempt was to be made
}

// Once runs a script. It is not repeated once it may have run: the error is then script.ErrLost, with its
// cause.
func (l *Lanes) Once(ctx context.Context, s *lua.Script, keys *script.Keys, args ...any) (any, error) {
	return l.Run(ctx, &script.Call{Script: s, Keys: keys, Args: script.Constant(args)})
}

// Read runs a script that changes nothing that matters.
func (l *Lanes) Read(ctx context.Context, s *lua.Script, keys *script.Keys, args ...any) (any, error) {
	return l.Run(ctx, &script.Call{Script: s, Keys: keys, Repeat: true, Reads: true, Args: script.Constant(args)})
}

// Answers reports whether the server of a limiter's keys decides at all. write is the command by
// which decisions write, SET or ZADD: a server may answer reads and refuse that command.
func (l *Lanes) Answers(keys *script.Keys, write string) bool {
	_, err := l.Read(context.Background(), lua.Probe, keys, write)
	return !errors.Is(script.Outage(err), limit.ErrUnavailable)
}

// Run makes a call, with all its attempts, and returns the script's answer. It returns early if ctx
// ends or the time for an answer is over: a call that was not sent never is. The lane keeps one that was sent,
// but makes no more attempts, and the error says that it may have run.
func (l *Lanes) Run(ctx context.Context, c *script.Call) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	since := time.Now()
	e := l.Of(ctx, c.Keys.Names()[0]).begin(ctx, c, since, nil)
	if ended := Wait(ctx, e.wave.done, time.Time{}); ended != nil {
		e.leave(func(sent bool) error {
			if sent {
				return c.Lost(ended)
			}
			return ended
		})
	}
	if e.left {
		return nil, e.err
	}
	*c = e.call.Call
	return c.Outcome()
}

// Start makes a call in the background, even if ctx ends; ctx is for the Redis client's hooks. It then
// calls then with the result. then must not wait.
func (l *Lane) Start(ctx context.Context, c *script.Call, then func(reply any, err error)) {
	l.begin(ctx, c, time.Now(), then)
}

func (l *Lane) begin(ctx context.Context, c *script.Call, since time.Time, then func(reply any, err error)) *errand {
	e := &errand{lane: l, call: Call{Call: *c, ctx: ctx}, then: then}
	e.call.Owner, e.call.errand = e, e
	if e.call.Since.IsZero() {
		e.call.Since = since
	}
	e.since = e.call.Since
	e.Wait()
	l.mu.Lock()
	e.timer = time.AfterFunc(time.Until(e.call.Since.Add(l.conn.Timeout())), e.expire)
	l.mu.Unlock()
	l.queue(e)
	return e
}

// queue adds the errand to the next flight. Errands have one flight more than decisions, so that
// neither hold up the others.
func (l *Lane) queue(e *errand) {
	l.mu.Lock()
	e.unsent()
	l.errands = append(l.errands, e)
	extra := !l.silent && l.extra == 0
	if extra {
		l.extra++
		l.flights++
	}
	start := !extra && l.start()
	l.mu.Unlock()
	if start || extra {
		l.dispatch(task{errands: extra})
	}
}

// leave ends an errand without an answer, with the error that why returns.
func (e *errand) leave(why func(sent bool) error) {
	l := e.lane
	l.mu.Lock()
	if e.State == Answered {
		l.mu.Unlock()
		return
	}
	sent := e.State == Sent
	e.err, e.left = why(sent), true
	e.end()
	if !sent {
		l.forget()
	}
	l.mu.Unlock()
	if e.then != nil {
		e.then(nil, e.err)
	}
}

// forget counts an errand that ended before it was sent, and cleans the queue when half of it are such
// errands: the queue of a silent server is not emptied otherwise. l.mu is held.
func (l *Lane) forget() {
	if l.left++; 2*l.left > len(l.errands) {
		l.errands = slices.DeleteFunc(l.errands, func(e *errand) bool { return e.State == Answered })
		l.left = 0
	}
}

// end ends the errand. The lane's lock is held.
func (e *errand) end() {
	e.timer.Stop()
	e.Tell()
}

// expire ends an errand that has waited too long for its answer.
func (e *errand) expire() {
	timeout := e.lane.conn.Timeout()
	e.leave(func(sent bool) error {
		if sent && e.call.Reads {
			return fmt.Errorf("%w: no answer within %v", limit.ErrUnavailable, timeout)
		}
		return NoAnswer(timeout, sent)
	})
}

// OnReply ends an errand whose call is done.
func (e *errand) OnReply(c *Call) (again bool) {
	l := e.lane
	l.mu.Lock()
	over := e.State == Answered
	if !over {
		e.end()
	}
	l.mu.Unlock()
	switch {
	case over && c.Late != nil:
		c.Late()
	case !over && e.then != nil:
		e.then(c.Outcome())
	}
	return false
}

// Progressed gives an errand of several steps the time of a call once more: the server answers. Only one
// whose steps each do a part of the work has more than that.
func (e *errand) Progressed() {
	l := e.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.State == Answered {
		return
	}
	left := l.conn.Timeout()
	if e.call.Continued == nil {
		left = min(left, time.Until(e.since.Add(2*left)))
	}
	e.timer.Reset(left)
}

// unsent records that the call has certainly not run yet, and will be sent again.
func (e *errand) unsent() {
	if e.State == Sent && e.call.Doubts() == 0 {
		e.State = Gathered
	}
}

// takeErrands appends calls of errands to those of a flight, up to room in all. A call that is not repeated
// has more time for its one attempt, and would leave calls beside it that are none for a second: those of
// the other kind are first in the next flight. l.mu is held.
func (l *Lane) takeErrands(calls []*Call, room int) []*Call {
	n, others := 0, 0
	for ; n < len(l.errands) && len(calls) < room; n++ {
		e := l.errands[n]
		switch {
		case e.State == Answered:
		case len(calls) > 0 && e.call.Repeat != calls[0].Repeat:
			l.errands[others] = e
			others++
		default:
			calls = append(calls, &e.call)
		}
	}
	copy(l.errands[n-others:n], l.errands[:others])
	l.errands = dropped(l.errands, n-others)
	return calls
}

// departs reports whether to make an attempt of the call: not if the errand is over or no longer
// wanted.
func (e *errand) departs() bool {
	if wanted := e.call.Wanted; wanted != nil && !e.seen && !wanted() {
		e.leave(func(bool) error { return script.ErrUnwanted })
	}
	e.seen = true
	e.lane.mu.Lock()
	defer e.lane.mu.Unlock()
	if e.State == Answered {
		return false
	}
	e.State = Sent
	return true
}
