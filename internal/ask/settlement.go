package ask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Settlement is what a request was charged, for its handler to settle.
type Settlement struct {
	outer *Settlement // of the middleware around this one

	mu      sync.Mutex
	charges []charge
	called  bool
}

// charge is what one limit charged.
type charge struct {
	limit  string
	settle settle
}

type settlementKey struct{}

// WithSettlement returns a context for a handler, and the Settlement that Settle finds in it.
func WithSettlement(ctx context.Context) (context.Context, *Settlement) {
	outer, _ := ctx.Value(settlementKey{}).(*Settlement)
	s := &Settlement{outer: outer}
	return context.WithValue(ctx, settlementKey{}, s), s
}

// Charge makes the grants of the questions what the handler settles, in place of earlier ones. It does
// nothing if s is nil.
func (s *Settlement) Charge(questions ...*Question) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.charges, s.called = nil, false
	for _, q := range questions {
		if q.settle != nil {
			s.charges = append(s.charges, charge{q.Limit.Name, q.settle})
		}
	}
}

// Settle settles the charges of all middleware around a handler. If nothing was charged it does nothing.
func Settle(ctx context.Context, actual int64) error {
	s, _ := ctx.Value(settlementKey{}).(*Settlement)
	switch {
	case s == nil:
		return fmt.Errorf("%w: the context is not that of a request that passed middleware with WithSettle", limit.ErrInvalidConfig)
	case actual < 0:
		return fmt.Errorf("%w: %d is below 0", limit.ErrInvalidPermits, actual)
	}
	charges, again := s.all()
	if len(charges) == 0 && again {
		return fmt.Errorf("%w: it was settled before, and nothing was charged", limit.ErrSettled)
	}
	errs := make([]error, len(charges))
	var settling sync.WaitGroup
	for i, c := range charges {
		settling.Go(func() {
			err := Safely(ctx, func(ctx context.Context) error { return c.settle(ctx, actual) })
			if err != nil {
				errs[i] = fmt.Errorf("limit %q: %w", c.limit, err)
			}
		})
	}
	settling.Wait()
	// A call is repeated because some limits failed. The first call settled the others.
	before := func(err error) bool { return errors.Is(err, limit.ErrSettled) }
	if slices.ContainsFunc(errs, func(err error) bool { return !before(err) && !errors.Is(err, limit.ErrUnsupported) }) {
		errs = slices.DeleteFunc(errs, before)
	}
	return errors.Join(errs...)
}

// all returns the charges of all middleware, and reports whether Settle was called before.
func (s *Settlement) all() (charges []charge, again bool) {
	again = true
	for ; s != nil; s = s.outer {
		s.mu.Lock()
		charges = append(charges, s.charges...)
		again, s.called = again && s.called, true
		s.mu.Unlock()
	}
	return charges, again
}
