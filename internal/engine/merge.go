package engine

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/recent"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// mergeMemory is how many bytes the logs of all limiters take at most: enough for three times as many as one KeyedLimiter has
// handles. They are known by name: handles come and go.
const mergeMemory = 128 << 20

type mergeLogs = recent.Map[string, *merge.Log]

func newMergeLogs() *mergeLogs { return recent.New[string, *merge.Log](mergeMemory) }

// mergeLog returns the limiter's log, nil if its members are left alone. A rate of 0 permits is not known.
func (e *Engine) mergeLog(l *Limiter, rate int64, interval time.Duration) *merge.Log {
	if !e.rules.Merge || e.rules.Layout != codec.LayoutD2 || l.Exact {
		return nil
	}
	log, ok := e.logs.Get(l.Config)
	if !ok {
		if rate = cmp.Or(rate, l.Rate.Permits); rate > 0 && merge.LeftAlone(rate) {
			return nil
		}
		if l.Kept && !merge.IsWorthALog(l.granted.Add(1)) { // keys that are used once have no log
			return nil
		}
		log = e.logs.Add(l.Config, &merge.Log{}, merge.Bytes, func(*merge.Log) bool { return true })
		log.Learn(l.Rate.Permits, l.Rate.Interval)
	}
	log.Learn(rate, interval)
	return log
}

// grantedLog returns the log for the members of a batch that no call asks for any more, nil if they are left alone. No lock
// is held.
func (b *batch) grantedLog(o lane.Outcome) *merge.Log {
	if o.Taken == 0 || b.exact || b.call.Doubts() > 0 {
		return nil
	}
	return b.queue.engine.mergeLog(b.limiter, o.Limit, o.Interval)
}

// noteEach records those of these members that are one request's each.
func (b *batch) noteEach(log *merge.Log, now time.Time) {
	for i, r := range b.requests {
		if log != nil && !r.Reserve && !r.Undo && r.State == lane.Answered && r.answer.Granted {
			b.limiter.noteMember(log, redisson.Later(b.member, i), r.answer.Taken, b.sent, now, nil)
		}
	}
}

// noteMember records a member that was asked for and granted at these times.
func (l *Limiter) noteMember(log *merge.Log, member []byte, permits int64, sent, granted time.Time, shared *merge.Member) {
	if log == nil {
		return
	}
	due, asks := log.Add(member, permits, sent.Add(granted.Sub(sent)/2), shared)
	if due {
		l.due.Store(log)
	}
	if l.asksFigures.Load() != asks {
		l.asksFigures.Store(asks)
	}
}

// merging is a call that merges members, beside the limiter's other calls but before jobs, which count members. It goes
// along with one of these, so that it costs no round trip. Nothing is lost if it fails or never goes: members stay as they are.
type merging struct {
	call    lane.Call
	queue   *queue
	limiter *Limiter
	log     *merge.Log
	named   *merge.Call
	sent    time.Time
}

// rider returns a call that merges members of the limiter, to go along with one of its calls; nil if there is no need.
func (q *queue) rider(l *Limiter) *lane.Call {
	log := l.due.Load()
	switch {
	case log != nil:
		l.due.Store(nil)
	case !l.asked.Load(): // what was granted before may have been granted by other handles
		l.asked.Store(true)
		if log, _ = q.engine.logs.Get(l.Config); log != nil && !log.Due() {
			log = nil
		}
	}
	if log == nil {
		return nil
	}
	m := &merging{queue: q, limiter: l, log: log}
	m.call.Owner = m
	return &m.call
}

// Prepare names the members, unless there are none to merge. The call that this one goes along with uses the queue.
func (m *merging) Prepare(c *lane.Call) {
	q := m.queue
	var start []*merge.Member
	m.named, start = m.log.Name(func() []byte { return redisson.Merged(q.engine.ids.Next(nil, 1)) })
	q.startReturns(start)
	if m.named == nil {
		return
	}
	keys, _ := q.keysFor(m.limiter)
	m.sent = time.Now()
	c.Call = script.Call{Script: lua.Merge, Keys: keys, Repeat: true, Args: script.Constant(m.named.Append(nil))}
	q.lock()
	defer q.unlock()
	q.beside++
}

// OnReply records what has become of the members.
func (m *merging) OnReply(c *lane.Call) (again bool) {
	q := m.queue
	reply, err := c.Outcome()
	numbers, unexpected := script.Integers(reply, 1)
	if err = cmp.Or(err, unexpected); err != nil {
		q.startReturns(m.named.Failed(!errors.Is(script.Outage(err), limit.ErrUnavailable)))
	} else {
		q.startReturns(m.named.Answered(numbers, m.sent, c.Doubts() > 0))
	}
	if m.named.Missed { // what others have taken permits off keeps a group from being merged only once
		m.limiter.due.Store(m.log)
	}
	q.lock()
	defer q.unlock()
	q.beside--
	q.next(time.Now())
	return false
}

// Progressed has nothing to do.
func (m *merging) Progressed() {}

// startReturns gives back permits of members that no call names any more.
func (q *queue) startReturns(start []*merge.Member) {
	for _, m := range start {
		go q.returnWaiting(context.Background(), m)
	}
}
