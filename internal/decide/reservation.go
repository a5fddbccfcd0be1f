package decide

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/words"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Reservation is what one limiter has granted, or several together. It is settled once.
type Reservation struct {
	key      string
	observer *observe.Observer
	granted  bool
	parts    []reserved

	mu       sync.Mutex
	actual   []int64 // permits, of the first Settle; nil before
	left     []int   // the parts that are not settled
	underWay int     // how many are being settled
}

// reserved is what one limiter has granted.
type reserved struct {
	Limiter
	Answer
}

// Init makes r what settles an answer to an ask of those limiters.
func (r *Reservation) Init(observer *observe.Observer, of []Limiter, q Ask, a Answer) {
	r.key, r.observer, r.granted = q.Key, observer, a.Granted
	for i, l := range of {
		r.parts, r.left = append(r.parts, reserved{l, a.Part(i)}), append(r.left, i)
	}
}

// Limiters returns how many limiters were asked.
func (r *Reservation) Limiters() int { return len(r.parts) }

// Settle charges actual permits in place of those reserved, of each of the limiters. If ctx ends, it returns and
// goes on in the background. It does nothing if nothing was granted.
func (r *Reservation) Settle(ctx context.Context, actual ...int64) error {
	const op = "Settle"
	for i, n := range actual {
		if most := r.parts[i].Most; n < 0 || n > most {
			return r.fail(i, op, fmt.Errorf("%w: %d is not between 0 and %d", limit.ErrInvalidPermits, n, most))
		}
	}
	return r.settle(ctx, op, actual)
}

// Cancel settles with 0, and does nothing once Settle was called with other numbers.
func (r *Reservation) Cancel(ctx context.Context) error {
	err := r.settle(ctx, "Cancel", make([]int64, len(r.parts)))
	if errors.Is(err, limit.ErrSettled) {
		return nil // which is no fault of a deferred call
	}
	return err
}

// Renew makes what was granted count from now on, as if it were granted now.
func (r *Reservation) Renew(ctx context.Context) error {
	const op = "Renew"
	r.mu.Lock()
	settled, all := r.actual, make([]int, len(r.parts))
	r.mu.Unlock()
	if settled != nil {
		return r.failAll(op, fmt.Errorf("%w: with %s, before", limit.ErrSettled, permits(settled)))
	}
	for i := range all {
		all[i] = i
	}
	return r.each(all, op, func(i int) error {
		if renew := r.parts[i].Renew; renew != nil {
			return renew(ctx)
		}
		return nil
	})
}

// settle settles with these numbers what is not settled, all parts at once.
func (r *Reservation) settle(ctx context.Context, op string, actual []int64) error {
	if !r.granted {
		return nil
	}
	left, err := r.begin(actual)
	if err != nil {
		return r.failAll(op, err)
	}
	return r.each(left, op, func(i int) error { return r.settlePart(ctx, i) })
}

// each calls do for each of these parts, at once.
func (r *Reservation) each(parts []int, op string, do func(part int) error) error {
	errs := make([]error, len(parts))
	AtOnce(len(parts), func(i int) { errs[i] = r.fail(parts[i], op, do(parts[i])) })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// failAll adds the call to an error about all parts, and the limiter if it is the only one.
func (r *Reservation) failAll(op string, err error) error {
	if len(r.parts) == 1 {
		return r.fail(0, op, err)
	}
	return fmt.Errorf("rratelimiter: %s: %w", op, err)
}

// fail adds the call and the limiter to an error.
func (r *Reservation) fail(part int, op string, err error) error {
	return r.parts[part].Of.Fail(Ask{Call: op, Key: r.key}, err)
}

// begin returns the parts to settle, or an error if they can't be settled with these numbers.
func (r *Reservation) begin(actual []int64) (left []int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.underWay > 0:
		return nil, fmt.Errorf("%w: with %s, just now", limit.ErrSettled, permits(r.actual))
	case len(r.left) == 0:
		return nil, fmt.Errorf("%w: with %s, before", limit.ErrSettled, permits(r.actual))
	case r.actual == nil:
		r.actual = slices.Clone(actual)
	case !slices.Equal(r.actual, actual):
		return nil, fmt.Errorf("%w: the first call, for %s, failed; repeat that one", limit.ErrSettled, permits(r.actual))
	}
	left, r.left, r.underWay = r.left, nil, len(r.left)
	return left, nil
}

// permits is how errors name numbers of permits.
func permits(each []int64) string {
	all := make([]string, len(each))
	for i, n := range each {
		all[i] = words.Plural(n, "permit")
	}
	return strings.Join(all, " and ")
}

func (r *Reservation) settlePart(ctx context.Context, i int) (err error) {
	p, actual := &r.parts[i], r.actual[i]
	end := func(err error) { r.end(i, actual, err) }
	if p.Settle != nil {
		return p.Settle(ctx, actual, end)
	}
	if actual == 0 && p.Undo != nil {
		err = p.Undo(ctx)
	}
	end(err)
	return err
}

// end records how settling a part ended.
func (r *Reservation) end(i int, actual int64, err error) {
	p := &r.parts[i]
	r.mu.Lock()
	r.underWay--
	if err != nil && (!p.Once || !errors.Is(err, limit.ErrUnknownOutcome)) {
		r.left = append(r.left, i)
	}
	r.mu.Unlock()
	r.observer.Settled(limit.Settled{
		Limiter: p.Observed, Reserved: p.Permits, Actual: actual, Charged: p.Settle != nil, Err: r.fail(i, "Settle", err),
	})
}

// AtOnce calls f with each number below n at the same time, and panics as the first that did.
func AtOnce(n int, f func(i int)) {
	if n == 1 {
		f(0)
		return
	}
	var calls sync.WaitGroup
	panicked := make([]any, n)
	for i := range n {
		calls.Go(func() {
			defer func() { panicked[i] = recover() }()
			f(i)
		})
	}
	calls.Wait()
	for _, v := range panicked {
		if v != nil {
			panic(v)
		}
	}
}
