package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/words"
	"github.com/rratelimiter/rratelimiter/limit"
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

	renewing atomic.Int32            // calls that date the member anew and may still run
	renewed  atomic.Pointer[renewal] // the last that has; nil if none has

	asked  bool      // some call may still ask for its members: another program's, or a late attempt
	charge []byte    // the member for the charge beyond permits
	doubt  time.Time // when the first call that may have run was sent; zero if none was
}

// renewal is a call that has dated a grant's member anew.
type renewal struct {
	sent time.Time
	at   int64 // from when the grant counts since, in epoch ms by the server's clock
}

// Reserved sets how the grant of an answer is settled and renewed: one with a member of its own, asked for at sent and
// answered at granted; doubtful says that an attempt of the call may come yet.
func (e *Engine) Reserved(
	a *decide.Answer, l *Limiter, member []byte, permits int64, hold Hold, sent, granted time.Time, doubtful bool,
) {
	s := &settlement{
		engine: e, limiter: l, member: member, permits: permits, hold: hold, sent: sent, granted: granted, asked: doubtful,
	}
	a.Settle, a.Renew, a.Reserved = s.settle, s.renew, s
}

// settle settles the grant and then calls then with the result.
func (s *settlement) settle(ctx context.Context, used int64, then func(error)) error {
	if used == s.permits && s.hold.Early == 0 { // it is as it was granted
		s.noteMembers(used, 0)
		then(nil)
		return nil
	}
	charged, done := int64(0), false
	return s.beside(ctx, func(ctx context.Context, start time.Time) (err error) {
		charged, err = s.call(ctx, used, start)
		done = err == nil
		return err
	}, func(q *queue) {
		if done {
			s.noteMembers(used, charged)
		}
		q.settled(charged, used < s.permits)
	}, then)
}

// renew dates the grant's member anew. The error is limit.ErrSettled if the permits have come back.
func (s *settlement) renew(ctx context.Context) error {
	return s.beside(ctx, s.date, (*queue).exit, func(error) {})
}

// date makes the script's call of renew.
func (s *settlement) date(ctx context.Context, start time.Time) error {
	early, _ := s.hold.words()
	s.renewing.Add(1)
	c := &lane.Call{Requests: 1, Call: script.Call{ // a request, since it is a grant anew, for which replicas are waited for
		Script: lua.RenewReservation, Keys: s.limiter.Keys(), Repeat: true, Args: script.Constant{s.member, early}, Since: start,
	}}
	at, err := script.Integer(s.engine.lanes.RunCall(ctx, c))
	if err != nil {
		return s.engine.explain(s.limiter.Keys().Names(), err)
	}
	for known := at == 0; !known; { // or a renewal that is dated later
		last := s.renewed.Load()
		known = last != nil && last.at >= at || s.renewed.CompareAndSwap(last, &renewal{start, at})
	}
	if c.Doubts() == 0 { // no attempt comes late
		s.renewing.Add(-1)
	}
	if at == 0 {
		return fmt.Errorf("%w: what was reserved has come back", limit.ErrSettled)
	}
	return c.Short
}

// ages returns how old the grant, or its last renewal, is at most and at least, and the hold's words.
func (s *settlement) ages() (most string, least int64, early, at string) {
	sent := s.sent
	least = script.ShortAge(time.Since(s.granted)).Milliseconds()
	early, at = s.hold.words()
	renewing := s.renewing.Load() > 0
	if last := s.renewed.Load(); last != nil {
		sent, least = last.sent, 0
		early, at = Hold{s.hold.Early, last.at}.words()
	}
	if renewing {
		least, at = 0, ""
	}
	return script.LongAge(time.Since(sent)), least, early, at
}

// beside makes a call about the grant, counts it out by exit, and then calls then with the result. It goes on in the
// background if ctx ends first. While it does, no Release runs, which might take the charge of a call that must be repeated.
func (s *settlement) beside(
	ctx context.Context, call func(ctx context.Context, start time.Time) error, exit func(*queue), then func(error),
) error {
	e, start := s.engine, time.Now()
	q, err := e.lock(ctx, s.limiter)
	if err != nil {
		then(err)
		return err
	}
	q.users++
	turn := q.turn()
	q.unlock()
	return lane.Detached(ctx, 0, func(ctx context.Context) error {
		timeout := e.conn.Timeout
		err := lane.NoAnswer(timeout, false)
		entered := q.awaitTurn(ctx, turn, start.Add(timeout)) == nil
		if entered {
			err = call(ctx, start)
		}
		q.lock()
		q.users--
		if entered {
			exit(q)
		}
		q.unlock()
		then(err)
		return err
	})
}

// noteMembers records the members of a settled grant, of which so many permits were charged from then on, unless some call
// may still ask for them.
func (s *settlement) noteMembers(used, charged int64) {
	if s.asked {
		return
	}
	log, now := s.engine.mergeLog(s.limiter, 0, 0), time.Now()
	if log == nil {
		return
	}
	if charged > 0 {
		s.limiter.noteMember(log, s.charge, charged, now, now, nil)
	}
	member := s.member
	if s.hold.Early > 0 || charged > 0 {
		member = redisson.Settled(member)
	}
	sent, granted := s.sent, s.granted
	if last := s.renewed.Load(); last != nil {
		sent, granted = last.sent, last.sent
	}
	if kept := min(used, s.permits); kept > 0 && charged < used {
		s.limiter.noteMember(log, member, kept, sent, granted, nil)
	}
}

// settled counts a settlement out, which has charged so many permits, or freed some.
func (q *queue) settled(charged int64, freed bool) {
	if charged > 0 {
		q.updateFigures(lane.Outcome{Taken: charged}, 0, tally{})
	}
	if !freed {
		q.exit()
		return
	}
	q.beside--
	q.changed() // before the next job can start
}

// call makes the script's call, until no other member has the charge's id. It returns how many permits were charged
// beside the reservation.
func (s *settlement) call(ctx context.Context, used int64, start time.Time) (charged int64, err error) {
	e := s.engine
	most := max(0, used-s.permits) // permits that may be charged
	if s.hold.Early > 0 {
		most = used // the hold may be over
	}
	for draws := redraws(0); ; {
		if s.charge == nil {
			s.charge = e.ids.Next(nil, 1)
		}
		sent := time.Now()
		c := &lane.Call{Call: script.Call{
			Script: lua.SettleReservation, Keys: s.limiter.Keys(), Repeat: true, Args: s.arguments(used), Since: start,
		}}
		reply, err := e.lanes.RunCall(ctx, c)
		if most > 0 {
			e.Granted(s.limiter.Config)
		}
		switch {
		case draws.again(e, reply, err):
			s.charge = nil
			continue
		case isWord(reply, "taken"):
			return 0, fmt.Errorf("%w: every id drawn was another member's", limit.ErrUnavailable)
		case isWord(reply, "unknown"):
			err = fmt.Errorf("%w: an answer was lost, and the charge of %s may have run out since",
				limit.ErrUnknownOutcome, words.Plural(most, "permit"))
		case err == nil:
			back, err := script.Integer(reply, nil)
			s.asked = s.asked || !s.doubt.IsZero() || c.Doubts() > 0
			return max(0, -back), err
		}
		err = e.explain(s.limiter.Keys().Names(), err)
		if s.doubt.IsZero() && errors.Is(err, limit.ErrUnknownOutcome) {
			s.doubt = sent
		}
		return 0, err
	}
}

func (s *settlement) arguments(used int64) script.Arguments {
	e, doubt := s.engine, s.doubt // an abandoned call may read it while the next one writes
	charge := redisson.WithPermits(s.charge, max(0, used-s.permits))
	return script.ArgumentsFunc(func(all []any, a script.Attempt) []any {
		if !doubt.IsZero() {
			a.Age = max(a.Age, time.Since(doubt))
		}
		age, token := a.Words()
		most, least, early, at := s.ages()
		return append(all, s.member, used, charge, most, least, age, token, e.fallback(s.limiter, time.Now()), early, at)
	})
}
