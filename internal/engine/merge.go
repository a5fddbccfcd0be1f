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

// mergeMemory is how many bytes the logs of all limiters take at most. They are known by name: handles come and go.
const mergeMemory = 64 << 20

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
		if l.Kept && l.granted.Add(1) <= merge.AskAfter { // keys that are used once have no log
			return nil
		}
		log = e.logs.Add(l.Config, &merge.Log{}, merge.Bytes, func(*merge.Log) bool { return true })
		log.Learn(l.Rate.Permits, l.Rate.Interval)
	}
	log.Learn(rate, interval)
	return log
}

// granted records members of a batch, which no call asks for any more.
func (q *queue) granted(b *batch, o lane.Outcome, now time.Time) {
	if o.Taken == 0 || b.exact || b.call.Doubts() > 0 {
		return
	}
	log := q.engine.mergeLog(b.limiter, o.Limit, o.Interval)
	if log == nil {
		return
	}
	if !b.own {
		q.noteMember(b.limiter, log, b.member, o.Taken, b.sent, now, b.shared)
	}
	for i, r := range b.requests {
		if b.own && !r.Reserve && !r.Undo && r.State == lane.Answered && r.answer.Granted {
			q.noteMember(b.limiter, log, redisson.Later(b.member, i), r.answer.Taken, b.sent, now, nil)
		}
	}
}

// noteMember records a member that was asked for and granted at these times.
func (q *queue) noteMember(l *Limiter, log *merge.Log, member []byte, permits int64, sent, granted time.Time, shared *merge.Member) {
	if log == nil {
		return
	}
	due, asks := log.Add(member, permits, sent.Add(granted.Sub(sent)/2), shared)
	if due {
		q.mergeSome(log)
	}
	if l.asksFigures.Load() != asks {
		l.asksFigures.Store(asks)
	}
}

// mergeSome merges members of the log, beside the limiter's other calls but before jobs, which count
// members. Nothing is lost if that fails: they stay as they are.
func (q *queue) mergeSome(log *merge.Log) {
	if q.engine.lanes.Closed() {
		return
	}
	q.beside++
	go func() {
		e := q.engine
		for range 2 { // what others have taken permits off keeps a group from being merged only once
			c, start := log.Name(func() []byte { return redisson.Merged(e.ids.Next(nil, 1)) })
			if c != nil {
				start = append(start, e.merge(q.of, c)...)
			}
			for _, m := range start {
				go q.returnWaiting(context.Background(), m)
			}
			if c == nil || !c.Missed {
				break
			}
		}
		q.lock()
		defer q.unlock()
		q.beside--
		q.next(time.Now())
	}()
}

// merge makes the call. It returns members of which permits are to go back.
func (e *Engine) merge(l *Limiter, m *merge.Call) (start []*merge.Member) {
	keys := l.overall.Load()
	if keys == nil {
		keys = l.Keys()
	}
	c := &lane.Call{Call: script.Call{Script: lua.Merge, Keys: keys, Repeat: true, Args: script.Constant(m.Append(nil))}}
	sent := time.Now()
	reply, err := e.lanes.RunCall(context.Background(), c)
	numbers, unexpected := script.Integers(reply, 1)
	if err = cmp.Or(err, unexpected); err != nil {
		return m.Failed(!errors.Is(err, limit.ErrUnavailable))
	}
	return m.Answered(numbers, sent, c.Doubts() > 0)
}
