package middleware

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Record is what middleware has decided about a request and charged it, for its handler.
type Record struct {
	outer   *Record // of the middleware around this one
	settles bool    // the handler is to settle
	charges bool    // the handler may settle, in place of what the status says

	mu        sync.Mutex
	questions []Question // with their answers
	called    bool       // Settle was
}

type recordKey struct{}

// WithRecord returns a context for a handler, and the Record that Settle and Decisions find in it.
func WithRecord(ctx context.Context, settles, charges bool) (context.Context, *Record) {
	outer, _ := ctx.Value(recordKey{}).(*Record)
	r := &Record{outer: outer, settles: settles, charges: charges}
	return context.WithValue(ctx, recordKey{}, r), r
}

// Set makes the answers to the questions what the handler sees and settles, in place of earlier ones. It does
// nothing if r is nil.
func (r *Record) Set(questions []Question) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.questions, r.called = questions, false
}

// Decisions calls each with the name and the decision of all policies of middleware around a handler, the
// outermost first.
func Decisions(ctx context.Context, each func(name string, d limit.Decision)) {
	r, _ := ctx.Value(recordKey{}).(*Record)
	questions, _, _, _ := r.all(false)
	for _, q := range questions {
		if q.Decided() {
			each(q.Limit.Name, q.Decision)
		}
	}
}

// Settle settles the charges of all middleware around a handler: those that wait for it, or if there are none, those
// that the status would settle. If nothing was charged it does nothing.
func Settle(ctx context.Context, actual int64) error {
	if actual < 0 {
		return fmt.Errorf("%w: %d is below 0", limit.ErrInvalidPermits, actual)
	}
	r, _ := ctx.Value(recordKey{}).(*Record)
	charges, settles, may, again := r.all(true)
	charges = slices.DeleteFunc(charges, func(q Question) bool {
		return q.settle == nil || q.Limit.InFlight || settles && !q.Limit.Settle
	})
	switch {
	case !settles && !may:
		return fmt.Errorf("%w: the context is not that of a request that passed middleware with a Policy.Settle", limit.ErrInvalidConfig)
	case len(charges) == 0 && again:
		return fmt.Errorf("%w: it was settled before, and nothing was charged", limit.ErrSettled)
	}
	errs := make([]error, len(charges))
	decide.AtOnce(len(charges), func(i int) {
		q := &charges[i]
		err := safely(ctx, func(ctx context.Context) error { return q.settle(ctx, actual) })
		if err != nil {
			errs[i] = fmt.Errorf("limit %q: %w", q.Limit.Name, err)
		}
	})
	// A call is repeated because some limits failed. The first call settled the others.
	before := func(err error) bool { return errors.Is(err, limit.ErrSettled) }
	if slices.ContainsFunc(errs, func(err error) bool { return !before(err) && !errors.Is(err, limit.ErrUnsupported) }) {
		errs = slices.DeleteFunc(errs, before)
	}
	return errors.Join(errs...)
}

// all returns the questions of all middleware, and reports whether its handler is to settle any, or may, and whether Settle
// was called before, as it is now if settling.
func (r *Record) all(settling bool) (questions []Question, settles, may, again bool) {
	again = true
	for ; r != nil; r = r.outer {
		r.mu.Lock()
		questions = append(slices.Clone(r.questions), questions...)
		settles, may = settles || r.settles, may || r.charges
		again, r.called = again && r.called, r.called || settling
		r.mu.Unlock()
	}
	return questions, settles, may, again
}
