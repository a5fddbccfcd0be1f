package lane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

const (
	maxJoint  = 64 // calls that are merged into one, so that no script runs for long
	maxRiders = 16 // of a flight
)

// flight is calls that go in one pipeline: take fills it under the lock, sendFlight sends it without, and land gives
// its calls their results, with which they are done or sent again. It has one of the lane's places until it has landed
// or sweep finds it late: then another may have the place, and go-redis still waits for the answer. If that is overdue,
// sweep gives the flight up, and its calls are repeated; an answer that comes before the repeat is sent still counts.
// Each call gets its result once.
type flight struct {
	calls []*Call
	load  int              // how many there are without riders
	joint int              // how many of them, the first, are merged
	cmds  []script.Command // one for each maxJoint of these, one for each other call, and WAIT if it waits for replicas
	room  [1]script.Command
	wave  *Wave        // ends when the calls have their results; may be nil
	alone bool         // it is a call that a caller sends by itself
	byOne bool         // on that caller's goroutine
	waits bool         // for replicas
	told  limit.Flight // of the calls that decide, to the observer if it watches

	sent time.Time
	end  time.Time // when it is given up, unless the server answers others
	last time.Time // when it is given up in any case
	late time.Time // when others may have its place, perhaps after that

	// The lock guards these.
	before   int       // how many calls the lane had landed when it was sent
	since    time.Time // when the last of these had, or work for the server began
	due      time.Time // when sweep looks at it
	hasPlace bool
	over     bool // its calls have their results
}

// take returns a flight with what has gathered. If there is nothing, it returns nil, and the place is free.
func (l *Lane) take() *flight {
	var over []*Call
	l.mu.Lock()
	f := &flight{hasPlace: true}
	for len(f.calls) == 0 && l.waiting() {
		f.wave.End() // nothing was sent: those who wait on it check their own time
		f.wave = nil
		over = append(over, l.fill(f)...)
		if l.wave == f.wave {
			l.wave = nil
		}
	}
	f.load = len(f.calls)
	l.load += f.load
	if f.load == 0 {
		f.wave.End()
		f = nil
		l.flights--
	}
	l.start() // for what this one has no room for
	l.mu.Unlock()
	if l.lanes.Closed() {
		l.close() // Close has not seen what this one had taken and has no room for
	}
	l.expire(over)
	return f
}

// fill adds calls to an empty flight, ready-made ones first, and returns those whose time is over. Those of once go by
// themselves, in turn with all others: calls that are not repeated, since the calls of their flight would have no time for
// another attempt, and what need not wait for replicas, if others do.
func (l *Lane) fill(f *flight) (over []*Call) {
	room, now := min(maxTogether, max(minRoom, l.window-l.load)), time.Now()
	ready := min(maxReady, room)
	switch {
	case l.silent:
		room, ready = 1, 1
	case len(l.ready) > 0:
		ready = min(ready, room/2)
	}
	late := now
	if l.load > 0 { // otherwise this flight shows how long one takes: what is late has no place, and may tell of a pause
		ahead := l.ahead()
		late = now.Add(max(min(l.trips.Shortest(), ahead), ahead*time.Duration(min(l.load+room, l.window))/time.Duration(l.window)))
	}
	l.onceLast = len(l.once) > 0 && (!l.onceLast || len(l.calls)+len(l.ready) == 0)
	from := &l.calls
	if l.onceLast {
		from = &l.once
	}
	n := min(ready, len(*from))
	if end := slices.IndexFunc((*from)[:n], func(c *Call) bool { return c.Repeat != (*from)[0].Repeat }); end > 0 {
		n = end // a call that is not repeated may use all its time in one attempt
	}
	f.calls = append(make([]*Call, 0, min(room, l.waits())), (*from)[:n]...)
	*from = dropped(*from, n)
	f.calls = slices.DeleteFunc(f.calls, func(c *Call) bool {
		if !c.Overdue(l.conn, late) && (c.command() == nil || c.command().claim()) {
			return false
		}
		over = append(over, c)
		return true
	})
	f.wave = l.wave
	for alike := !l.onceLast; alike && len(l.ready) > 0 && len(f.calls) < room; { // others come meanwhile
		alike = l.ask(f, room, now)
	}
	return over
}

// sendFlight sends a flight and lands it. If a hook of the Redis client's panics, every call still gets a result,
// and sendFlight returns the value of the panic.
func (l *Lane) sendFlight(ctx context.Context, f *flight) (panicked any) {
	f.sent = time.Now()
	f.takeRiders()
	watched := l.lanes.Observer.Watches()
	for _, c := range f.calls {
		c.flight = f
		if c.Script == nil {
			c.Owner.Prepare(c)
		}
		end, last := c.Begin(l.conn)
		if end.After(f.end) {
			f.end = end
		}
		if last.After(f.last) {
			f.last = last
		}
		if c.Requests == 0 || !watched {
			continue
		}
		f.told.Calls++
		f.told.Requests += c.Requests
		if c.Attempts() > 1 {
			f.told.Repeats++
		}
	}
	f.end, f.last = f.end.Add(l.replicas.Wait), f.last.Add(l.replicas.Wait)
	if f.byOne {
		f.last = f.end // the caller can't leave
	}
	if l.conn.Inline {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, f.last)
		defer cancel()
	}
	if len(f.calls) > 1 && !l.lanes.apart.Load() {
		f.joint = join(f.calls)
	}
	f.cmds = slices.Grow(f.room[:0], (f.joint+maxJoint-1)/maxJoint+len(f.calls)-f.joint)
	for from := 0; from < f.joint; from += maxJoint {
		f.cmds = append(f.cmds, merge(ctx, f.calls[from:min(from+maxJoint, f.joint)]))
	}
	for _, c := range f.calls[f.joint:] {
		f.cmds = append(f.cmds, c.Next(ctx))
	}
	f.waits = l.replicas.Count > 0 && slices.ContainsFunc(f.calls, func(c *Call) bool { return c.Requests > 0 })
	if r := l.replicas; f.waits { // until they have what the connection has written
		f.cmds = append(f.cmds, script.NewCommand(ctx, []any{"wait", r.Count, r.Wait.Milliseconds()}, 0))
	}
	f.late = f.sent.Add(l.conn.ProbePace + l.replicas.Wait)
	l.departs(f)
	panicked = l.exchange(ctx, f)
	l.land(f, panicked)
	return panicked
}

// takeRiders adds the calls that go along with others, but not so many that these wait for long.
func (f *flight) takeRiders() {
	for _, c := range f.calls {
		for len(f.calls) < f.load+maxRiders && c.Rider != nil {
			r := c.Rider
			c.Rider, r.Rider = r.Rider, nil
			if r.Owner.Prepare(r); r.Script != nil {
				f.calls = append(f.calls, r)
			}
		}
		c.Rider = nil
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

// land records how a flight ended, once go-redis has returned, and gives its calls their results, if sweep has not.
// Others then have its place, if it was late, or if it is a single call and nothing has gathered meanwhile.
func (l *Lane) land(f *flight, panicked any) {
	now := time.Now()
	silent := script.AllSilent(f.cmds)
	l.mu.Lock()
	if f.hasPlace {
		l.load -= f.load
	}
	switch {
	case !silent:
		l.answered(f, now)
	case f.hasPlace:
		l.setSilent(!l.lastAnswer.After(f.sent))
	}
	switch {
	case !f.hasPlace:
		l.stuck--
		l.start()
	case f.alone:
		if f.hasPlace = l.waiting(); !f.hasPlace {
			l.flights--
		}
	}
	if i := slices.Index(l.underWay, f); i >= 0 {
		l.underWay = slices.Delete(l.underWay, i, i+1)
	}
	if f.over {
		l.keepUnsent(f, silent || panicked != nil)
	}
	l.mu.Unlock()
	if script.Decides(f.cmds) {
		l.Breaker.Heard(now.Sub(f.sent))
	}
	var failed error
	if panicked != nil {
		failed = script.Panicked(panicked)
	}
	l.deliver(f, failed)
}

// deliver reports a flight, and gives its calls their results: those of its commands, or failed if that is not nil.
func (l *Lane) deliver(f *flight, failed error) {
	defer f.wave.End()
	if f.told.Calls > 0 {
		f.told.RoundTrip, f.told.Err = time.Since(f.sent), failed
		if failed == nil && script.AllSilent(f.cmds) {
			f.told.Err = f.cmds[0].Err()
		}
		l.lanes.Observer.Landed(f.told)
	}
	if failed != nil {
		for _, c := range f.calls {
			l.finish(c, nil, failed)
		}
		return
	}
	if f.waits {
		l.confirm(f)
	}
	cmds := f.cmds
	for from := 0; from < f.joint; from += maxJoint {
		l.split(f.calls[from:min(from+maxJoint, f.joint)], cmds[0])
		cmds = cmds[1:]
	}
	for i, c := range f.calls[f.joint:] {
		l.finish(c, cmds[i].Val(), cmds[i].Err())
	}
}

// finish gives a call the result of its attempt. A call that is not done is sent again; it goes on if it was answered.
func (l *Lane) finish(c *Call, reply any, err error) {
	if c == nil {
		return // it has its result
	}
	done, backoff := c.Ended(l.conn, reply, err)
	if done {
		l.done(c)
		return
	}
	if err == nil {
		c.Owner.Progressed()
	}
	to := l.lockNext(c, err)
	defer to.mu.Unlock()
	if r := c.command(); r != nil {
		r.unsent()
	}
	if backoff == 0 {
		to.send(c)
		return
	}
	c.due = time.Now().Add(backoff)
	to.delayed = append(to.delayed, c)
	to.sweepBy(c.due)
}

// join puts those calls first that are merged, the early ones before others, and returns how many they are.
func join(calls []*Call) (joint int) {
	for _, c := range calls {
		if c.Joinable() != nil {
			joint++
		}
	}
	if joint < 2 {
		return 0
	}
	slices.SortStableFunc(calls, func(a, b *Call) int { return cmp.Compare(place(a), place(b)) })
	return joint
}

func place(c *Call) int {
	switch j := c.Joinable(); {
	case j == nil:
		return 2
	case j.Early:
		return 0
	}
	return 1
}

// merge makes one command of calls.
func merge(ctx context.Context, calls []*Call) script.Command {
	early, keys, eval := 0, 0, false
	for _, c := range calls {
		if c.Joint.Early {
			early++
		}
		keys += len(c.Keys.Names())
		eval = eval || c.Joint.Eval
	}
	words := make([]any, 0, 4+keys+2*len(calls))
	if eval {
		words = append(words, "eval", calls[0].Joint.Script.Source, keys)
	} else {
		words = append(words, "evalsha", calls[0].Joint.Script.Word, keys)
	}
	for _, c := range calls {
		words = append(words, c.Keys.Words()...)
	}
	words = append(words, early)
	for _, c := range calls {
		words = append(words, c.Joint.Args[:]...)
	}
	return script.NewCommand(ctx, words, 3)
}

// split gives each of the merged calls its part of the answer. An error of their command is no answer to any
// of them: it is then in doubt whether each has run.
func (l *Lane) split(calls []*Call, cmd script.Command) {
	err := cmd.Err()
	if redis.HasErrorPrefix(err, "NOSCRIPT") && cmd.Name() == "evalsha" {
		for _, c := range calls {
			if c != nil {
				c.UnknownJoint()
				l.resend(c)
			}
		}
		return
	}
	answers, _ := cmd.Val().([]any)
	undecided := false
	switch {
	case err == nil && len(answers) != len(calls):
		err = script.Unexpected(cmd.Val())
	case err != nil && script.IsAnswer(err):
		undecided = script.NotRun(err)
		if !undecided && !errors.Is(script.Outage(err), limit.ErrUnavailable) {
			l.lanes.apart.Store(true)
		}
		switch script.Code(err) {
		case "CROSSSLOT", "NOPERM":
			undecided = true
		}
		err = fmt.Errorf("several limiters in one call: %v", err) //nolint:errorlint // see above
	}
	for i, c := range calls {
		switch {
		case c == nil:
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
