package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/words"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// settlement is a grant with a member of its own that can be settled. Its caller settles it in one
// call at a time, always for the same number of permits.
type settlement struct {
	engine  *Engine
	limiter *Limiter
	member  []byte
	permits int64
	sent    time.Time // when the grant was asked for
	granted time.Time // when its answer came

	charge []byte    // the member for the charge beyond permits
	doubt  time.Time // when the first call that may have run was sent; zero if none was
}

// Settler returns the [outage.Answer.Settle] of a grant with a member of its own, asked for at sent and answered
// at granted.
func (e *Engine) Settler(l *Limiter, member []byte, permits int64, sent, granted time.Time) func(context.Context, int64, func(error)) error {
	s := &settlement{engine: e, limiter: l, member: member, permits: permits, sent: sent, granted: granted}
	return s.settle
}

// settle settles the grant and then calls then with the result. It goes on in the background if ctx
// ends first.
func (s *settlement) settle(ctx context.Context, used int64, then func(error)) error {
	e, start := s.engine, time.Now()
	q, err := e.enter(ctx, s.limiter, nil)
	if err != nil {
		then(err)
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer e.leave(q)
		ctx := context.WithoutCancel(ctx)
		err := q.beginBehindJobs(ctx, start, start.Add(e.conn.Timeout()))
		if err == nil {
			err = s.alone(ctx, q, start, used)
		}
		then(err)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return underWay(ctx.Err())
	}
}

// alone makes the call while no Release runs: that might take the charge of a call that must be
// repeated. The queue has counted it among its calls.
func (s *settlement) alone(ctx context.Context, q *queue, start time.Time, used int64) error {
	e := s.engine
	q.mu.Lock()
	q.calls, q.returns = q.calls-1, q.returns+1
	q.next(time.Now())
	q.mu.Unlock()
	err := s.run(ctx, start, used)
	q.mu.Lock()
	if err == nil && used > s.permits {
		q.hear(outcome{Outcome: lane.Outcome{Taken: used - s.permits}}, 0, heard{})
	}
	q.returns--
	q.next(time.Now())
	q.mu.Unlock()
	if used < s.permits {
		e.freed(s.limiter.Config)
	}
	return err
}

// run makes the call. If the id of the charge is another member's, it draws a new one. start is when the
// caller came.
func (s *settlement) run(ctx context.Context, start time.Time, used int64) error {
	e, l := s.engine, s.limiter
	for range maxRedraws {
		if s.charge == nil {
			s.charge = e.ids.Next(nil, 1)
		}
		c := &script.Call{Script: lua.SettleReservation, Keys: l.Keys, Repeat: true, Args: s.arguments(used), Since: start}
		sent := time.Now()
		reply, err := e.lanes.Run(ctx, c)
		if used > s.permits {
			e.Granted(l.Config)
		}
		switch {
		case isWord(reply, "taken"):
			s.charge = nil
			e.ids.Skip()
			continue
		case isWord(reply, "unknown"):
			err = fmt.Errorf("%w: an answer was lost, and the charge of %s may have run out since",
				limit.ErrUnknownOutcome, words.Plural(used-s.permits, "permit"))
		case err == nil:
			_, err = script.Integer(reply)
			return err
		}
		err = e.explain(l.Keys.Names(), err)
		if s.doubt.IsZero() && errors.Is(err, limit.ErrUnknownOutcome) {
			s.doubt = sent
		}
		return err
	}
	return fmt.Errorf("%w: every id drawn was another member's", limit.ErrUnavailable)
}

func (s *settlement) arguments(used int64) script.Arguments {
	e, doubt := s.engine, s.doubt // an abandoned call may read it while the next one writes
	charge := redisson.WithPermits(s.charge, max(0, used-s.permits))
	return script.ArgumentsFunc(func(all []any, a script.Attempt) []any {
		if !doubt.IsZero() {
			a.Age = max(a.Age, time.Since(doubt))
		}
		age, token := a.Words()
		most, least := script.LongAge(time.Since(s.sent)), script.ShortAge(time.Since(s.granted)).Milliseconds()
		return append(all, s.member, used, charge, most, least, age, token, e.fallback(s.limiter, time.Now()))
	})
}
