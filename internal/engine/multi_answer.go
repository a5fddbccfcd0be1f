package engine

import (
	"errors"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// OnReply passes the result to the caller. If the caller has gone, grants go back.
func (m *multiRequest) OnReply(c *lane.Call) (again bool) {
	return m.engine.complete(m, &m.redo, c)
}

func (m *multiRequest) finish(reply any, err error) {
	var a outage.Answer
	switch {
	case m.redo.replaces != nil:
		err = &Error{Name: m.redo.replaces.Name, Err: m.engine.gaveNoDefault(m.redo.replaces, err)}
	case err != nil:
		number, explained := m.engine.explainPart(m.keys.Names(), err)
		err = m.blame(number, explained)
	default:
		a, err = m.parse(reply)
		for _, l := range m.limiters {
			l.defaultChecked(m.sent)
		}
	}
	short := m.call.Unreplicated()
	m.engine.mu.Lock()
	defer m.engine.mu.Unlock()
	if err != nil || a.Granted {
		for i, q := range m.queues {
			took := lane.Outcome{}
			if a.Granted {
				took.Taken = m.permits[i]
			}
			m.engine.Granted(q.config)
			q.updateFigures(took, 0, tally{})
		}
	}
	gone := m.State == lane.Gone
	unwanted := a.Granted && (gone || short != nil)
	if a.Granted && short != nil {
		a, err = outage.Answer{}, short
	}
	m.answer, m.err = a, err
	for i, q := range m.queues {
		if gone && errors.Is(err, limit.ErrUnknownOutcome) {
			m.engine.givenUp(q, m.permits[i], err)
		}
		if unwanted {
			q.giveBack(grant{member: m.memberOf(i), permits: m.permits[i], sent: m.sent})
		}
	}
	m.end()
	m.MarkAnswered(nil)
}

// parse reads the script's answer.
func (m *multiRequest) parse(reply any) (a outage.Answer, err error) {
	all := len(m.limiters)
	if granted, ok := reply.(int64); ok && granted == m.permits[0] && !m.figures {
		a.Granted = true
		return a, nil
	}
	values, _ := reply.([]any)
	if len(values) == 3 && values[0] == "exceeds" {
		return m.parseExceeds(values[1:])
	}
	size := 1 // of what is said about each limiter
	if m.figures {
		size = 4
	}
	numbers, err := script.Integers(reply, all*size)
	if err != nil {
		return a, err
	}
	if (len(numbers)-all*size)%3 != 0 {
		return a, script.Unexpected(reply)
	}
	a.Granted, m.alive = len(numbers) == all*size, time.Time{}
	if m.figures {
		a.Each = make([]outage.Answer, all)
	}
	for i := range all {
		said := numbers[i*size : (i+1)*size]
		keep := said[0]
		if keep < 0 {
			m.engine.found(m.limiters[i], repaired)
			keep = -1 - keep
		}
		m.alive = sooner(m.alive, aliveBy(m.sent, script.Millis(keep)))
		if m.figures {
			free := said[2]
			if a.Granted {
				free -= m.permits[i]
			}
			a.Each[i].Decision = limit.Decision{
				Granted: true, Limit: said[1], Remaining: max(0, free), ResetAfter: script.Millis(max(0, said[3])),
			}
		}
	}
	for refusal := range slices.Chunk(numbers[all*size:], 3) {
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
func (m *multiRequest) parseExceeds(words []any) (a outage.Answer, err error) {
	numbers, err := script.Integers(words, 2)
	if err != nil {
		return a, err
	}
	place := min(max(numbers[0], 1), int64(len(m.limiters))) - 1
	a.Each = make([]outage.Answer, len(m.limiters))
	a.Each[place].Limit = numbers[1]
	return a, m.blame(numbers[0], errExceeds(m.permits[place], numbers[1]))
}

// one returns the limiter of that number, from 1, or nil if there is none.
func (m *multiRequest) one(number int64) *Limiter {
	if number < 1 || number > int64(len(m.limiters)) {
		return nil
	}
	return m.limiters[number-1]
}

// blame names the limiter, by its number, in an error.
func (m *multiRequest) blame(number int64, err error) error {
	if l := m.one(number); l != nil {
		return &Error{Name: l.Name, Err: err}
	}
	return err
}
