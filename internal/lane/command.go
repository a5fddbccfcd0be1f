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

// command is a request whose script is ready: one that reads, changes or gives back. It decides nothing.
type command struct {
	Pending

	lane    *Lane // the first
	call    Call
	timer   *time.Timer                // ends it if no answer comes in time
	then    func(reply any, err error) // nil if a caller waits; the lock is held
	since   time.Time                  // when its time began
	reply   any
	err     error
	claimed bool // whether it is wanted was asked
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
	r := l.Lock(ctx, c.Keys.Names()[0]).begin(ctx, c, nil)
	l.Mu.Unlock()
	if ended := Wait(ctx, r.wave.done, time.Time{}); ended != nil {
		r.leave(func(sent bool) error {
			if sent {
				return c.Lost(ended)
			}
			return ended
		})
	}
	return r.reply, r.err
}

// Start makes a call in the background, even if ctx ends; ctx is for the Redis client's hooks. It then
// calls then with the result. The lock is held, as in then, which must not wait.
func (l *Lane) Start(ctx context.Context, c *script.Call, then func(reply any, err error)) {
	l.begin(ctx, c, then)
}

func (l *Lane) begin(ctx context.Context, c *script.Call, then func(reply any, err error)) *command {
	r := &command{lane: l, call: Call{Call: *c, ctx: ctx}, then: then}
	r.call.Owner = r
	if r.call.Since.IsZero() {
		r.call.Since = time.Now()
	}
	r.since = r.call.Since
	r.Wait()
	r.timer = time.AfterFunc(time.Until(r.since.Add(l.conn.Timeout())), r.expire)
	l.send(&r.call)
	return r
}

// leave ends a command without an answer, with the error that why returns.
func (r *command) leave(why func(sent bool) error) {
	l := r.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.State == Answered {
		return
	}
	sent := r.State == Sent
	r.end(nil, why(sent))
	if !sent {
		l.Ended()
	}
}

// Ended says that the caller of something to be sent has gone. The lane forgets such things when they are about half
// of what is to be sent: a silent server's queue is not emptied otherwise. The lock is held.
func (l *Lane) Ended() {
	if l.ended++; 2*l.ended <= l.waits() {
		return
	}
	over := func(c *Call) bool { return c.command() != nil && c.command().Answered() }
	l.calls, l.once = slices.DeleteFunc(l.calls, over), slices.DeleteFunc(l.once, over)
	l.ready = slices.DeleteFunc(l.ready, func(s Source) bool {
		r, ok := s.(interface{ Answered() bool })
		return ok && r.Answered()
	})
	l.ended = 0
}

// end ends the command.
func (r *command) end(reply any, err error) {
	r.reply, r.err = reply, err
	r.timer.Stop()
	r.MarkAnswered(nil)
	if r.then != nil {
		r.then(reply, err)
	}
}

// expire ends a command that has waited too long for its answer.
func (r *command) expire() {
	timeout := r.lane.conn.Timeout()
	r.leave(func(sent bool) error {
		if sent && r.call.Reads {
			return fmt.Errorf("%w: no answer within %v", limit.ErrUnavailable, timeout)
		}
		return NoAnswer(timeout, sent)
	})
}

// OnReply ends a command whose call is done.
func (r *command) OnReply(c *Call) (again bool) {
	l := r.lane
	l.mu.Lock()
	over := r.State == Answered
	if !over {
		r.end(c.Outcome())
	}
	l.mu.Unlock()
	if over && c.Late != nil {
		c.Late()
	}
	return false
}

// Progressed gives a command of several steps the time of a call once more: the server answers. Only one
// whose steps each do a part of the work has more than that.
func (r *command) Progressed() {
	if r.State == Answered {
		return
	}
	left := r.lane.conn.Timeout()
	if r.call.Continued == nil {
		left = min(left, time.Until(r.since.Add(2*left)))
	}
	r.timer.Reset(left)
}

// unsent records that no attempt of the call is in doubt, and that it will be sent again, perhaps by another lane.
func (r *command) unsent() {
	if r.State == Sent && r.call.Doubts() == 0 {
		r.State = Gathered
	}
}

// claim reports whether to make an attempt of the call: not if the command is over or no longer wanted.
func (r *command) claim() bool {
	if r.State == Answered {
		return false
	}
	if wanted := r.call.Wanted; wanted != nil && !r.claimed && !wanted() {
		r.end(nil, script.ErrUnwanted)
		return false
	}
	r.claimed, r.State = true, Sent
	return true
}

// command returns the command whose call it is; nil if the call decides requests.
func (c *Call) command() *command {
	r, _ := c.Owner.(*command)
	return r
}
