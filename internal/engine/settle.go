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
	hold    Hold
	sent    time.Time // when the grant was asked for
	granted time.Time // when its answer came

	charge []byte    // the member for the charge beyond permits
	doubt  time.Time // when the first call that may have run was sent; zero if none was
}

// Settler returns the [outage.Answer.Settle] of a grant with a member of its own, asked for at sent and answered
// at granted.
func (e *Engine) Settler(l *Limiter, member []byte, permits int64, hold Hold, sent, granted time.Time) func(context.Context, int64, func(error)) error {
	s := &settlement{engine: e, limiter: l, member: member, permits: permits, hold: hold, sent: sent, granted: granted}
	return s.settle
}

// settling is a call of a settlement under way. While it is, no Release runs, which might take the charge
// of a call that must be repeated.
type settling struct {
	*settlement

	ctx   context.Context // for the Redis client's hooks
	queue *queue
	used  int64
	start time.Time // when the caller came
	then  func(error)

	begun   bool // no job is before it; the Engine's lock guards that
	gone    bool // the caller went away before
	redraws int
	charged int64 // permits, beside the reservation
	done    chan struct{}
	err     error
}

// settle settles the grant and then calls then with the result. It goes on in the background if ctx
// ends first.
func (s *settlement) settle(ctx context.Context, used int64, then func(error)) error {
	q, err := s.engine.lock(ctx, s.limiter)
	if err != nil {
		then(err)
		return err
	}
	one := &settling{
		settlement: s, ctx: context.WithoutCancel(ctx), queue: q, used: used, start: time.Now(), then: then, done: make(chan struct{}),
	}
	q.users++
	q.whenAdmitted(one.begin)
	q.unlock()
	timeout := s.engine.conn.Timeout()
	err = lane.Wait(ctx, one.done, one.start.Add(timeout))
	if errors.Is(err, lane.ErrLate) {
		if one.leave() {
			err = lane.NoAnswer(timeout, false)
			then(err)
			return err
		}
		err = lane.Wait(ctx, one.done, time.Time{})
	}
	if err != nil {
		return underWay(err)
	}
	return one.err
}

// begin sends the first call, unless the caller has gone.
func (s *settling) begin() {
	s.begun = true
	if s.gone {
		s.queue.users--
		return
	}
	s.queue.returns++
	s.send()
}

// leave takes back a call that still waits for jobs.
func (s *settling) leave() bool {
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	s.gone = !s.begun
	return s.gone
}

// send makes the call.
func (s *settling) send() {
	if s.charge == nil {
		s.charge = s.engine.ids.Next(nil, 1)
	}
	c := &script.Call{Script: lua.SettleReservation, Keys: s.limiter.Keys, Repeat: true, Args: s.arguments(s.used), Since: s.start}
	sent := time.Now()
	s.queue.lane.Load().Start(s.ctx, c, func(reply any, err error) {
		if s.most() > 0 {
			s.engine.Granted(s.limiter.Config)
		}
		switch {
		case isWord(reply, "taken") && s.redraws < maxRedraws:
			s.redraws++
			s.charge = nil
			s.engine.ids.Skip()
			s.send()
		case isWrongType(err):
			go func() { s.finish(s.read(reply, err, sent)) }() // it asks Redis
		default:
			s.finish(s.read(reply, err, sent))
		}
	})
}

// most returns how many permits may be charged: once a hold is over, all that were used.
func (s *settling) most() int64 {
	if s.hold.Early > 0 {
		return s.used
	}
	return max(0, s.used-s.permits)
}

// read returns the error of a call that was sent then.
func (s *settling) read(reply any, err error, sent time.Time) error {
	switch {
	case isWord(reply, "taken"):
		return fmt.Errorf("%w: every id drawn was another member's", limit.ErrUnavailable)
	case isWord(reply, "unknown"):
		err = fmt.Errorf("%w: an answer was lost, and the charge of %s may have run out since",
			limit.ErrUnknownOutcome, words.Plural(s.most(), "permit"))
	case err == nil:
		back, err := script.Integer(reply)
		s.charged = max(0, -back)
		return err
	}
	err = s.engine.explain(s.limiter.Keys.Names(), err)
	if s.doubt.IsZero() && errors.Is(err, limit.ErrUnknownOutcome) {
		s.doubt = sent
	}
	return err
}

// finish passes the result to the caller.
func (s *settling) finish(err error) {
	q := s.queue
	q.engine.mu.Lock()
	if s.charged > 0 {
		q.updateFigures(lane.Outcome{Taken: s.charged}, 0, tally{})
	}
	q.users--
	q.returns--
	if s.used < s.permits {
		q.permitsFreed()
	} else {
		q.next(time.Now())
	}
	q.unlock()
	s.then(err)
	s.err = err
	close(s.done)
}

func (s *settlement) arguments(used int64) script.Arguments {
	e, doubt := s.engine, s.doubt // an abandoned call may read it while the next one writes
	charge := redisson.WithPermits(s.charge, max(0, used-s.permits))
	early, at := s.hold.words()
	return script.ArgumentsFunc(func(all []any, a script.Attempt) []any {
		if !doubt.IsZero() {
			a.Age = max(a.Age, time.Since(doubt))
		}
		age, token := a.Words()
		most, least := script.LongAge(time.Since(s.sent)), script.ShortAge(time.Since(s.granted)).Milliseconds()
		return append(all, s.member, used, charge, most, least, age, token, e.fallback(s.limiter, time.Now()), early, at)
	})
}
