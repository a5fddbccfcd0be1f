package rratelimitertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Answer is one answer of a Script: a Decision or an error.
type Answer struct {
	Decision limit.Decision
	Err      error
}

// scriptLimit is the Limit of decisions that only say yes or no.
const scriptLimit = 10

// Grant grants the permits, like a limit of 10 of which none were taken before.
func Grant() Answer {
	return Answer{Decision: limit.Decision{Granted: true, Limit: scriptLimit, Remaining: scriptLimit - 1, ResetAfter: time.Second}}
}

// Refuse refuses the permits, with that RetryAfter, like a limit of 10 that has none left.
func Refuse(retryAfter time.Duration) Answer {
	return Answer{Decision: limit.Decision{Limit: scriptLimit, RetryAfter: retryAfter, ResetAfter: retryAfter}}
}

// Decide answers with any decision.
func Decide(d limit.Decision) Answer { return Answer{Decision: d} }

// Fail answers with an error, such as limit.ErrUnavailable of a limiter that can't decide.
func Fail(err error) Answer { return Answer{Err: err} }

// Question is one call that a Script received.
type Question struct {
	Key string
	N   int64
}

// Settlement is a grant to a Question and what it cost.
type Settlement struct {
	Question

	Actual int64 // 0 if it was undone
}

// Script is a [limit.Limiter] that answers from a list, and remembers the questions. If the list is
// used up, a question fails the test. Like any limiter it returns errors of its own for a context that
// has ended and for permits below 1. These take no answer off the list.
//
// It is a [limit.Returner] and a [limit.Reserver] too.
type Script struct {
	t testing.TB

	mu        sync.Mutex
	inOrder   answers
	byKey     map[string]*answers
	repeats   bool
	asked     []Question
	givenBack []Question
	settled   []Settlement
}

type answers struct {
	list []Answer
	next int
}

// NewScript returns a Script that gives these answers one after another.
func NewScript(t testing.TB, inOrder ...Answer) *Script {
	return &Script{t: t, inOrder: answers{list: inOrder}, byKey: make(map[string]*answers)}
}

// For makes questions for key get their answers from a list of their own. It returns s.
func (s *Script) For(key string, inOrder ...Answer) *Script {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byKey[key] = &answers{list: inOrder}
	return s
}

// RepeatLast makes the last answer of each list repeat forever. It returns s.
func (s *Script) RepeatLast() *Script {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.repeats = true
	return s
}

// Asked returns the questions, in order.
func (s *Script) Asked() []Question {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// GivenBack returns the grants that were undone, in order.
func (s *Script) GivenBack() []Question {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.givenBack)
}

// Settled returns the grants that were settled, in order.
func (s *Script) Settled() []Settlement {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.settled)
}

// Take gives the next answer.
func (s *Script) Take(ctx context.Context, key string, n int64) (limit.Decision, error) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, Question{key, n})
	switch {
	case n < 1:
		return limit.Decision{}, fmt.Errorf("rratelimitertest: %w: %d", limit.ErrInvalidPermits, n)
	case ctx.Err() != nil:
		return limit.Decision{}, ctx.Err()
	}
	from, of := &s.inOrder, "the script"
	if own := s.byKey[key]; own != nil {
		from, of = own, fmt.Sprintf("the script for %q", key)
	}
	if from.next == len(from.list) {
		if !s.repeats || from.next == 0 {
			s.t.Errorf("rratelimitertest: %s has %d answers and is asked once more: for %d of %q", of, len(from.list), n, key)
			return limit.Decision{}, errUsedUp
		}
		from.next--
	}
	a := from.list[from.next]
	from.next++
	return a.Decision, a.Err
}

// TakeReturnable is Take with a grant that can be undone: see [limit.Returner].
func (s *Script) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	s.t.Helper()
	d, err := s.Take(ctx, key, n)
	if err != nil || !d.Granted {
		return d, nil, err
	}
	return d, func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.givenBack = append(s.givenBack, Question{key, n})
		return nil
	}, nil
}

// TakeReserved is Take with a grant that can be settled: see [limit.Reserver]. Settled twice, or below 0, a grant
// returns the errors of a RateLimiter's; settling what was not granted does nothing.
func (s *Script) TakeReserved(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context, int64) error, error) {
	s.t.Helper()
	d, err := s.Take(ctx, key, n)
	if err != nil || !d.Granted {
		return d, func(context.Context, int64) error { return nil }, err
	}
	settled := false
	return d, func(_ context.Context, actual int64) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case actual < 0:
			return fmt.Errorf("rratelimitertest: %w: %d", limit.ErrInvalidPermits, actual)
		case settled:
			return fmt.Errorf("rratelimitertest: %w", limit.ErrSettled)
		}
		settled = true
		s.settled = append(s.settled, Settlement{Question{key, n}, actual})
		return nil
	}, nil
}

var errUsedUp = errors.New("rratelimitertest: the script has no more answers")
