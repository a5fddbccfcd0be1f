package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// giveDefault replaces the limiter's default for a caller who asked at that time, and then counts the try out. The call
// goes on if the caller leaves.
func (m *multiRequest) giveDefault(ctx context.Context, l *Limiter, older limit.Rate, since, last time.Time) error {
	e := m.engine
	c := &lane.Call{Call: e.defaultCall(l), Last: last}
	c.Since = since
	c.Late = func(c *lane.Call) {
		defer m.exit()
		if c != nil {
			e.gaveDefault(l, older, c)
		}
	}
	if done, err := e.lanes.Do(ctx, c); !done {
		m.left = true
		return cmp.Or(ctx.Err(), err)
	}
	c.Late(c)
	if _, err := c.Outcome(); err != nil {
		return &Error{Name: l.Name, Err: e.noDefault(l, err)}
	}
	return nil
}

// over returns the answer of a try that is over, and counts it out. If the caller has gone, grants go back.
func (m *multiRequest) over(ctx context.Context, c *lane.Call, gone bool) (a decide.Answer, err error) {
	e := m.engine
	m.doubtful = c.Doubts() > 0
	reply, err := c.Outcome()
	switch {
	case err == nil:
		a, err = m.parse(reply)
		if _, _, isOlder := olderDefault(reply); !isOlder {
			for i, claim := range m.claims {
				l := claim.Limiter
				compared := l.defaultChecked(m.sent)
				if len(a.Each) > 0 {
					l.showed(a.Each[i].Limit, l.Rate.Interval, compared)
				}
			}
		}
	case gone:
		err = script.Outage(err)
	default:
		ctx, cancel := context.WithDeadline(ctx, lane.Sooner(time.Now().Add(e.conn.AttemptTimeout), c.Last))
		defer cancel()
		number, explained := e.explainPart(ctx, m.keys.Names(), err)
		err = m.blame(number, explained)
	}
	taken := a.Granted
	if taken && c.Short != nil {
		a, err = decide.Answer{}, c.Short
	}
	m.locked(func(q *queue) {
		place := slices.Index(m.queues, q)
		claim := m.claims[place]
		permits := claim.Permits
		if err != nil || taken {
			took := lane.Outcome{}
			if taken {
				took.Taken = permits
			}
			e.Granted(q.config)
			q.updateFigures(took, 0, tally{})
		}
		if gone && errors.Is(err, limit.ErrUnknownOutcome) {
			e.givenUp(q, permits, err)
		}
		switch {
		case taken && (gone || err != nil):
			q.giveBack(m.grantOf(place))
		case taken && (claim.Undo || !m.reserves):
			one := m.grantOf(place)
			if m.reserves {
				one.shared = merge.NewMember(one.member, permits)
				a.Each[place].Undo = q.undo(one)
			}
			if l := claim.Limiter; !m.doubtful {
				l.noteMember(e.mergeLog(l, 0, 0), one.member, permits, m.sent, time.Now(), one.shared)
			}
		}
		q.exit()
	})
	return a, err
}

// grantOf returns what the limiter at that place has granted.
func (m *multiRequest) grantOf(place int) grant {
	one := grant{member: m.memberOf(place), permits: m.claims[place].Permits, sent: m.sent}
	if m.said.holds != nil {
		one.hold = m.said.holds[place]
	}
	return one
}

// parse reads the script's answer.
func (m *multiRequest) parse(reply any) (a decide.Answer, err error) {
	all := len(m.claims)
	if granted, ok := reply.(int64); ok && granted == m.claims[0].Permits && !m.told {
		a.Granted = true
		return a, nil
	}
	values, _ := reply.([]any)
	if len(values) == 3 && values[0] == "exceeds" {
		return m.parseExceeds(values[1:])
	}
	head, size := 0, 2 // of what is said about all limiters, and about each
	if m.told {
		head, size = 1, 6
		m.said.free, m.said.holds = make([]int64, all), make([]Hold, all)
	}
	numbers, err := script.Integers(reply, head+all*size)
	if err != nil {
		return a, err
	}
	now, numbers := numbers[0], numbers[head:]
	if (len(numbers)-all*size)%3 != 0 {
		return a, script.Unexpected(reply)
	}
	a.Granted = len(numbers) == all*size
	m.said.keep, m.said.refusals = make([]time.Duration, all), numbers[all*size:]
	if m.figures {
		a.Each = make([]decide.Answer, all)
	}
	for i := range all {
		said := numbers[i*size : (i+1)*size]
		m.engine.found(m.claims[i].Limiter, findings(said[1]))
		m.said.keep[i] = script.Millis(said[0])
		if !m.told {
			continue
		}
		free, claim := said[3], m.claims[i]
		m.engine.mergeLog(claim.Limiter, said[2], script.Millis(said[5]))
		if a.Granted {
			free -= claim.Permits
		}
		m.said.free[i] = max(0, free)
		if claim.Hold > 0 {
			m.said.holds[i] = Hold{max(0, script.Millis(said[5])-claim.Hold), now}
		}
		if m.figures {
			a.Each[i].Decision = limit.Decision{
				Granted: true, Limit: said[2], Remaining: max(0, free), ResetAfter: script.Millis(max(0, said[4])),
			}
		}
	}
	for refusal := range slices.Chunk(m.said.refusals, 3) {
		wait := script.Millis(refusal[1])
		a.RetryAfter = max(a.RetryAfter, wait)
		if l := m.one(refusal[0]); l != nil {
			if m.figures {
				d := &a.Each[refusal[0]-1].Decision
				d.Granted, d.RetryAfter = false, wait
			}
			if l.auditDue(m.sent) {
				l.auditDone(time.Now(), script.Millis(refusal[2]))
			}
		}
	}
	return a, nil
}

// parseExceeds reads which limiter has a lower rate than is asked for, and that rate.
func (m *multiRequest) parseExceeds(words []any) (a decide.Answer, err error) {
	numbers, err := script.Integers(words, 2)
	if err != nil {
		return a, err
	}
	place := min(max(numbers[0], 1), int64(len(m.claims))) - 1
	a.Each = make([]decide.Answer, len(m.claims))
	a.Each[place].Limit = numbers[1]
	return a, m.blame(numbers[0], errExceeds(m.claims[place].Permits, numbers[1]))
}

// one returns the limiter of that number, from 1, or nil if there is none.
func (m *multiRequest) one(number int64) *Limiter {
	if number < 1 || number > int64(len(m.claims)) {
		return nil
	}
	return m.claims[number-1].Limiter
}

// blame names the limiter, by its number, in an error.
func (m *multiRequest) blame(number int64, err error) error {
	if l := m.one(number); l != nil {
		return &Error{Name: l.Name, Err: err}
	}
	return err
}
