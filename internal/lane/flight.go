package lane

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// maxJoint is how many calls are merged into one, so that no script runs for long.
const maxJoint = 64

// flight is the calls under way in one pipeline. It has one of the lane's slots from take, which fills it, until it
// has landed, or until late: then another may have the slot, and go-redis still waits for the answer. giveUp ends
// the calls of a flight whose answer is overdue. Each call gets its result once, by landing or by giveUp.
type flight struct {
	sent  time.Time
	calls []*Call
	apart []*Call // those that are not merged
	joint []jointCall
	cmds  []script.Command
	wait  script.Command // for replicas, the last of cmds; no Cmd if no one waits for them
	end   time.Time      // when it is given up
	over  atomic.Bool    // its calls have their results
	late  bool           // another may have its place; the lock guards it

	wave  *Wave // ends when its calls have their results; may be nil
	alone bool  // it is a call that a caller sends by itself
	more  bool  // its place is for what has gathered meanwhile

	cmd [1]script.Command // room for one
}

// sendFlight sends calls in one pipeline, and gives each its result. If a hook of the Redis client's
// panics, every call still gets a result, and sendFlight returns the value of the panic.
func (l *Lane) sendFlight(ctx context.Context, f *flight) (panicked any) {
	start := time.Now()
	var end time.Time
	for _, c := range f.calls {
		if until := c.Begin(l.conn); until.After(end) {
			end = until
		}
	}
	wait := l.replicas.Wait
	end = end.Add(wait)
	if l.conn.Inline() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	l.makeCommands(ctx, f)
	f.sent, f.end = start, end
	if !l.conn.Inline() {
		defer time.AfterFunc(min(l.conn.ProbePace()+wait, end.Sub(start)), func() { l.late(f) }).Stop()
	} else if f.wave != nil {
		defer time.AfterFunc(l.conn.ProbePace()+wait, f.wave.End).Stop()
	}
	panicked = l.exchange(ctx, f)
	told := !f.over.CompareAndSwap(false, true)
	if l.landed(f); told {
		return panicked
	}
	defer f.wave.End()
	l.observe(f, f.failure(panicked))
	l.confirm(f)
	var failed error
	if panicked != nil {
		failed = script.Panicked(panicked)
	}
	for _, g := range f.joint {
		l.tell(g, cmp.Or(failed, g.cmd.Err()))
	}
	for i, c := range f.apart {
		cmd := f.cmds[len(f.joint)+i]
		l.finish(c, cmd.Val(), cmp.Or(failed, cmd.Err()))
	}
	return panicked
}

// makeCommands makes the commands of a flight's calls.
func (l *Lane) makeCommands(ctx context.Context, f *flight) {
	if f.apart = f.calls; len(f.calls) > 1 && !l.lanes.apart.Load() {
		f.apart, f.joint = join(f.calls)
	}
	f.cmds = slices.Grow(f.cmd[:0], len(f.apart)+len(f.joint))
	for i := range f.joint {
		f.joint[i].cmd = f.joint[i].command(ctx)
		f.cmds = append(f.cmds, f.joint[i].cmd)
	}
	for _, c := range f.apart {
		f.cmds = append(f.cmds, c.Next(ctx))
	}
	if f.wait = l.replicas.await(ctx); f.wait.Cmd != nil {
		f.cmds = append(f.cmds, f.wait)
	}
}

// late lets others take the place of a flight that is late, if there is room, and gives it up at its
// end. From now on its callers, and those behind it, check their own time.
func (l *Lane) late(f *flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.over.Load() {
		return
	}
	f.wave.End()
	l.wave.End()
	if l.spare() && time.Since(f.sent) > 2*l.trips.Shortest() {
		l.yieldSlot(f)
	}
	time.AfterFunc(time.Until(f.end), func() { l.giveUp(f) })
}

// yieldSlot frees the place of a flight for others.
func (l *Lane) yieldSlot(f *flight) {
	f.late = true
	l.setSilent(!l.lastAnswer.After(f.sent))
	l.stuck++
	l.watch()
	l.flights--
	l.start()
}

// giveUp ends a flight that is not answered in time, while go-redis still waits for it.
func (l *Lane) giveUp(f *flight) {
	l.mu.Lock()
	first := f.over.CompareAndSwap(false, true)
	if first && !f.late {
		l.yieldSlot(f)
	}
	l.mu.Unlock()
	if !first {
		return
	}
	l.observe(f, script.ErrSilent)
	for _, c := range f.calls {
		l.finish(c, nil, script.ErrSilent)
	}
	f.wave.End()
}

// setSilent records whether the server is silent.
func (l *Lane) setSilent(silent bool) {
	if l.silent == silent {
		return
	}
	if l.silent = silent; silent {
		l.wave.End()
		l.watch()
	}
	kind := limit.ServerAnswers
	if silent {
		kind = limit.ServerSilent
	}
	l.lanes.observer.Happened(limit.Event{Kind: kind})
}

// failure is why a flight brought no answer at all; nil if it brought one.
func (f *flight) failure(panicked any) error {
	switch {
	case panicked != nil:
		return script.Panicked(panicked)
	case script.AllSilent(f.cmds):
		return f.cmds[0].Err()
	}
	return nil
}

// observe reports a flight, before its calls go on.
func (l *Lane) observe(f *flight, err error) {
	if !l.lanes.observer.Watches() {
		return
	}
	told := limit.Flight{RoundTrip: time.Since(f.sent), Err: err}
	for _, c := range f.calls {
		if c.Requests == 0 { // it decides nothing
			continue
		}
		told.Calls++
		told.Requests += c.Requests
		if c.Attempts() > 1 {
			told.Repeats++
		}
	}
	if told.Calls > 0 {
		l.lanes.observer.Landed(told)
	}
}

// exchange sends the commands of a flight. If it waits for replicas, they go to the lane's master by one
// connection, past a cluster's client, which would send a command without a key to any node.
func (l *Lane) exchange(ctx context.Context, f *flight) (panicked any) {
	defer func() { panicked = recover() }()
	if l.replicas.Count > 0 {
		l.conn.SendTo(ctx, l.master, f.cmds...)
	} else {
		l.conn.Send(ctx, f.cmds...)
	}
	return nil
}

// landed records the flight's result, once go-redis has returned. Others then have its place, if it is
// late, or if it is a single call and nothing has gathered meanwhile.
func (l *Lane) landed(f *flight) {
	now := time.Now()
	answered := !script.AllSilent(f.cmds)
	l.mu.Lock()
	switch {
	case answered:
		l.lastAnswer = now
		l.setSilent(false)
		if now.Before(f.end) {
			l.trips.Add(now.Sub(f.sent), now)
			trip := l.trips.Shortest()
			l.near.Store(trip > 0 && trip < nearTrip)
		}
	case !f.late:
		l.setSilent(!l.lastAnswer.After(f.sent))
	}
	switch {
	case f.late:
		l.stuck--
		l.start()
	case f.alone:
		if f.more = l.waiting(); !f.more {
			l.flights--
		}
	}
	l.mu.Unlock()
	if answered {
		l.Breaker.Heard(now.Sub(f.sent))
	}
}

// finish gives a call the result of its attempt.
func (l *Lane) finish(c *Call, reply any, err error) {
	done, backoff := c.Ended(l.conn, reply, err)
	if done {
		l.done(c)
		return
	}
	l.next(c, err).retry(c, backoff, err == nil)
}

// jointCall is several calls merged into one.
type jointCall struct {
	calls []*Call
	cmd   script.Command
}

// join chooses which calls are merged.
func join(all []*Call) (apart []*Call, joint []jointCall) {
	count := 0
	for _, c := range all {
		if c.Joinable() != nil {
			count++
		}
	}
	if count < 2 {
		return all, nil
	}
	together := make([]*Call, 0, count)
	for _, c := range all {
		if c.Joinable() != nil {
			together = append(together, c)
		} else {
			apart = append(apart, c)
		}
	}
	slices.SortStableFunc(together, func(a, b *Call) int { return cmp.Compare(place(a), place(b)) })
	for chunk := range slices.Chunk(together, maxJoint) {
		joint = append(joint, jointCall{calls: chunk})
	}
	return apart, joint
}

func place(c *Call) int {
	if c.Joint.Early {
		return 0
	}
	return 1
}

// command makes the merged call.
func (g jointCall) command(ctx context.Context) script.Command {
	early, count, eval := 0, 0, false
	for _, c := range g.calls {
		eval = eval || c.Joint.Eval
		early += 1 - place(c)
		count += len(c.Keys.Names())
	}
	words := make([]any, 0, 4+count+2*len(g.calls))
	if eval {
		words = append(words, "eval", g.calls[0].Joint.Script.Source, count)
	} else {
		words = append(words, "evalsha", g.calls[0].Joint.Script.Word, count)
	}
	for _, c := range g.calls {
		words = append(words, c.Keys.Words()...)
	}
	words = append(words, early)
	for _, c := range g.calls {
		words = append(words, c.Joint.Args[:]...)
	}
	return script.NewCommand(ctx, words, 3)
}

// tell gives each call its part of the answer. An error of the merged call is no answer to any
// of them: it is then in doubt whether each has run.
func (l *Lane) tell(g jointCall, err error) {
	if redis.HasErrorPrefix(err, "NOSCRIPT") && g.cmd.Name() == "evalsha" {
		for _, c := range g.calls {
			c.UnknownJoint()
			l.resend(c)
		}
		return
	}
	answers, _ := g.cmd.Val().([]any)
	undecided := false
	switch {
	case err != nil && !script.IsAnswer(err):
	case err == nil && len(answers) != len(g.calls):
		err = script.Unexpected(g.cmd.Val())
	case err == nil:
	default:
		undecided = script.NotRun(err)
		l.lanes.apart.Store(l.lanes.apart.Load() || !undecided)
		switch script.Code(err) {
		case "CROSSSLOT", "MOVED", "ASK", "NOPERM":
			undecided = true
		}
		err = fmt.Errorf("several limiters in one call: %v", err) //nolint:errorlint // see above
	}
	for i, c := range g.calls {
		switch {
		case undecided || err == nil && answers[i] == int64(0):
			c.Joint = nil
			l.resend(c)
		case err != nil:
			l.finish(c, nil, err)
		default:
			l.finish(c, answers[i], nil)
		}
	}
}
