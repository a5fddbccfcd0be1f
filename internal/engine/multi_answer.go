package engine

import (
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/script"
)

// parse reads the script's answer.
func (m *multiRequest) parse(reply any) (v verdict, err error) {
	if granted, ok := reply.(int64); ok && granted == m.permits {
		return verdict{granted: true}, nil
	}
	values, _ := reply.([]any)
	if len(values) == 3 && values[0] == "exceeds" {
		numbers, err := script.Integers(values[1:], 2)
		if err != nil {
			return verdict{}, err
		}
		return verdict{}, m.blame(numbers[0], errExceeds(m.permits, numbers[1]))
	}
	all := len(m.limiters)
	numbers, err := script.Integers(reply, all)
	if err != nil {
		return verdict{}, err
	}
	if (len(numbers)-all)%3 != 0 {
		return verdict{}, script.Unexpected(reply)
	}
	v.granted = len(numbers) == all
	for i, keep := range numbers[:all] {
		if keep < 0 {
			m.engine.found(m.limiters[i], repaired)
			keep = -1 - keep
		}
		v.keeps = append(v.keeps, script.Millis(keep))
	}
	for refusal := range slices.Chunk(numbers[all:], 3) {
		v.wait = max(v.wait, script.Millis(max(refusal[1], -refusal[1])))
		if l := m.one(refusal[0]); l != nil && l.auditDue(m.sent) {
			l.auditDone(m.engine.clock.Now(), script.Millis(refusal[2]))
		}
	}
	return v, nil
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

// explain is Engine.explain, and names the limiter in the error.
func (m *multiRequest) explain(err error) error {
	number, err := m.engine.explainPart(m.keys.Names(), err)
	return m.blame(number, err)
}
