package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

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

	charge []byte    // the member for the charge beyond permits
	doubt  time.Time // when the first call that may have run was sent; zero if none was
}

// Settler returns the [decide.Answer.Settle] of a grant with a member of its own, asked for at sent and answered
// at granted.
func (e *Engine) Settler(l *Limiter, member []byte, permits int64, hold Hold, sent, granted time.Time) func(context.Context, int64, func(error)) error {
	s := &settlement{engine: e, limiter: l, member: member, permits: permits, hold: hold, sent: sent, granted: granted}
	return s.settle
}

// settle settles the grant and then calls then with the result. It goes on in the background if ctx
// ends first. While it does, no Release runs, which might take the charge of a call that must be repeated.
func (s *settlement) settle(ctx context.Context, used int64, then func(error)) error {
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
		charged := int64(0)
		if entered {
			charged, err = s.call(ctx, used, start)
		}
		q.lock()
		q.users--
		if entered {
			q.settled(charged, used < s.permits)
		}
		q.unlock()
		then(err)
		return err
	})
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
		reply, err := e.lanes.Run(ctx, &script.Call{
			Script: lua.SettleReservation, Keys: s.limiter.Keys(), Repeat: true, Args: s.arguments(used), Since: start,
		})
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
