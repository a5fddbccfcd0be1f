package lane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// command is the request of a caller whose call is ready-made.
type command struct {
	Pending

	lane      *Lane      // the first
	mu        sync.Mutex // guards the Pending and what follows; it is taken after a lane's, of which the call may have several
	call      *Call
	began     time.Time // when its time began
	claimed   bool      // whether it is wanted was asked
	abandoned bool      // its caller left while it was under way
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
	if l.Begin() != nil {
		return true // closed: no one asks any more
	}
	defer l.End()
	_, err := l.Read(context.Background(), lua.Probe, keys, write)
	return !errors.Is(script.Outage(err), limit.ErrUnavailable)
}

// Run is Do for a call of a script.
func (l *Lanes) Run(ctx context.Context, c *script.Call) (any, error) {
	return l.RunCall(ctx, &Call{Call: *c})
}

// RunCall is Do for a call whose answer is wanted.
func (l *Lanes) RunCall(ctx context.Context, c *Call) (any, error) {
	if done, err := l.Do(ctx, c); !done {
		return nil, err
	}
	return c.Outcome()
}

// Do makes a call, with all its attempts, and returns true once that is done. If ctx ends before, or the time for an
// answer or the caller's own, Do returns false with an error, in the first case a script.Left. A call that was not sent
// by then never is. The lane keeps one that was sent: the error says that it may have run.
func (l *Lanes) Do(ctx context.Context, c *Call) (done bool, err error) {
	if c.Since.IsZero() {
		c.Since = time.Now()
	}
	r := &command{call: c, began: c.Since}
	c.Owner, c.Ctx = r, ctx
	r.Asked, r.Last = c.Since, c.Last
	if err = ctx.Err(); err == nil {
		look := Sooner(c.Since.Add(l.Conn.Timeout), c.Last)
		r.lane = l.Lock(ctx, c.Keys.Names()[0])
		r.WaitOn(nil)
		if c.Wanted == nil && !c.Overdue(l.Conn, time.Now()) && r.lane.reserve() {
			r.State = Sent
			r.lane.SendOne(ctx, c, true)
		} else {
			r.lane.send(c)
		}
		r.lane.Unlock()
		if done, err = r.Await(ctx, l, r, look, true); !done && !r.abandoned {
			r.lane.forget()
		}
	}
	switch ended := ctx.Err(); {
	case done:
		return true, nil
	case !errors.Is(err, ended):
	case r.abandoned && !c.Reads:
		err = &script.Left{Err: UnderWay(ended)}
	default:
		err = &script.Left{Err: ended}
	}
	if c.Late != nil && !r.abandoned {
		c.Late(nil) // the lane may still look at the call
	}
	return false, err
}

// Lock implements [Waiter], as do the following methods.
func (r *command) Lock() { r.mu.Lock() }

// Unlock unlocks the command.
func (r *command) Unlock() { r.mu.Unlock() }

// Leave ends a command whose caller goes away.
func (r *command) Leave() (left bool) {
	r.abandoned = r.State == Sent
	return r.Pending.Leave()
}

// TimeUp is as for any request. Nothing is in doubt about a call that only reads.
func (r *command) TimeUp(now time.Time, timeout time.Duration) (end time.Time, err error) {
	end, err = r.Pending.TimeUp(now, timeout)
	if r.State == Sent && r.call.Reads {
		err = fmt.Errorf("%w: no answer within %v", limit.ErrUnavailable, timeout)
	}
	return end, err
}

// forget drops commands whose callers have gone when they are about half of what is to be sent: a silent server's
// queue is not emptied otherwise.
func (l *Lane) forget() {
	l.Lock()
	defer l.Unlock()
	if l.ended++; 2*l.ended <= l.waits() {
		return
	}
	over := func(c *Call) bool { return c.command() != nil && c.command().forgotten() }
	l.calls, l.once = slices.DeleteFunc(l.calls, over), slices.DeleteFunc(l.once, over)
	l.ended = 0
}

// Prepare has nothing to do.
func (r *command) Prepare(*Call) {}

// OnReply ends a command whose call is done.
func (r *command) OnReply(c *Call) (again bool) {
	r.Lock()
	if r.State != Gone {
		r.MarkAnswered(nil)
	}
	late := r.abandoned && c.Late != nil
	r.Unlock()
	if late {
		c.Late(c)
	}
	return false
}

// Progressed gives a command of several steps the time of a call once more: the server answers. Only one
// whose steps each do a part of the work has more than that.
func (r *command) Progressed() {
	r.Lock()
	defer r.Unlock()
	now := time.Now()
	if last := r.began.Add(r.lane.conn.Timeout); r.call.Continued == nil && last.Before(now) {
		now = last
	}
	r.Asked = now
}

// unsent records that no attempt of the call is in doubt, and that it will be sent again, perhaps by another lane.
func (r *command) unsent() {
	r.Lock()
	defer r.Unlock()
	if r.State == Sent && r.call.Doubts() == 0 {
		r.State = Gathered
	}
}

// forgotten reports whether it does not matter what becomes of the call.
func (r *command) forgotten() bool {
	r.Lock()
	defer r.Unlock()
	return r.State == Gone && (!r.abandoned || r.call.Late == nil)
}

// claim reports whether to make an attempt of the call: not if it is no longer wanted, or its caller has gone. But a
// call under way that can be repeated goes on, if Late is to know what has become of it.
func (r *command) claim() bool {
	r.Lock()
	defer r.Unlock()
	if r.State == Gone {
		return r.abandoned && r.call.Late != nil && r.call.Repeat
	}
	if wanted := r.call.Wanted; wanted != nil && !r.claimed && !wanted() {
		r.call.Unwanted()
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
