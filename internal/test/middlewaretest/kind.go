// Package middlewaretest tests what HTTP and gRPC middleware have in common: which
// requests pass, what they cost and under which key, and what answers while a limiter
// fails. What only one protocol has is left to the tests of its package.
package middlewaretest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A Kind is a kind of middleware to test. O is its option, K its key function.
type Kind[O, K any] struct {
	Name   string // as observers see it
	Prefix string // of keys, by default
	Parts  string // what follows the prefix by default, the same for each request

	// Exact is what RetryAfter is rounded up to.
	Exact time.Duration

	// Figures says that answers have them.
	Figures bool

	// Late is the verdict on a request whose deadline the limiter has missed. If it
	// is Unavailable, that is the limiter's failure.
	Late Verdict

	// Wrap returns middleware around a handler, which fails t if an answer is not as
	// its protocol says.
	Wrap func(t testing.TB, l limit.Limiter, opts ...O) Handler

	// Check returns the options' error.
	Check func(l limit.Limiter, opts ...O) error

	Text func(part string, err error) K // a key function that always says so
	User K                              // a key function that says whose request it is

	WithCost         func(n int64, err error) O
	WithErrorHandler func(hook func(error)) O
	WithFailure      func(limit.Failure) O
	WithFallback     func(limit.Limiter) O
	WithHashTag      func() O
	WithKey          func(...K) O
	WithObserver     func(limit.Observer) O
	WithPrefix       func(string) O
	WithShadow       func() O
	WithSkip         func(skip bool) O
	WithTimeout      func(time.Duration) O

	// Policy returns what middleware has in place of a limiter.
	Policy func(Policy) limit.Limiter

	WithPolicy func(Policy) O

	WithWait func() O // requests wait until they can pass; nil: they can't

	Settle func(ctx context.Context, actual int64) error // nil: no handler

	Bad map[string][]O // options that make no sense, besides those that all kinds have
}

// A Policy is what concerns only one limit.
type Policy struct {
	Name    string
	Limiter limit.Limiter
	Plan    func(user string) limit.Limiter
	Settle  bool
	Shadow  bool

	InFlight bool
	Hold     time.Duration
}

// A Handler makes a request of a user, and returns the result.
type Handler func(ctx context.Context, user string) Answer

// An Answer is what a caller sees.
type Answer struct {
	Verdict    Verdict
	RetryAfter time.Duration // of a refusal; 0 if waiting doesn't help
	Figures    []int64       // the limit and what remains of it; nil if they are not reported
	Text       string        // all that the caller can read
}

// A Verdict says what happened to a request.
type Verdict string

// What can happen to a request.
const (
	Passed        Verdict = "passed"
	Refused       Verdict = "refused"
	Unavailable   Verdict = "unavailable"
	Misconfigured Verdict = "misconfigured"
	Rejected      Verdict = "rejected" // its cost can't be found out
	Overdue       Verdict = "overdue"  // its deadline has passed
	Gone          Verdict = "gone"     // the caller didn't wait for the answer
)

// Run tests a kind of middleware. It replaces slog's default logger for a moment, so
// the test that calls it must not be parallel.
func (k Kind[O, K]) Run(t *testing.T) {
	t.Helper()
	t.Run("Log", k.testLog)
	for name, test := range map[string]func(*testing.T){
		"ErrorsNameTake":  k.testErrorsNameTake,
		"Verdicts":        k.testVerdicts,
		"Gone":            k.testGone,
		"Time":            k.testTime,
		"Panic":           k.testPanic,
		"BadOptions":      k.testBadOptions,
		"Keys":            k.testKeys,
		"PrefixIsNoted":   k.testPrefixIsNoted,
		"Decided":         k.testDecided,
		"Buckets":         k.testBuckets,
		"Plan":            k.testPlan,
		"PlanInOutage":    k.testPlanInOutage,
		"PlansWithoutEnd": k.testPlansWithoutEnd,
		"Outages":         k.testOutages,
		"WrappedOutage":   k.testWrappedOutage,
		"SettleAbove":     k.testSettleAboveTheLimit,
		"SettleInTime":    k.testSettleInTime,
		"SettleByPlan":    k.testSettleByPlan,
		"InFlightInRedis": k.testInFlightInRedis,
		"SettleIsChecked": k.testSettleIsChecked,
		"ShadowPolicy":    k.testShadowPolicy,
		"Waits":           k.testWaits,
		"WaitsInOrder":    k.testWaitsInOrder,
	} {
		if strings.HasPrefix(name, "Waits") && k.WithWait == nil {
			continue
		}
		if (strings.HasPrefix(name, "Settle") || strings.HasPrefix(name, "InFlight")) && k.Settle == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// settled returns a policy of a limiter whose grants are settled.
func (k Kind[O, K]) settled(l limit.Limiter) limit.Limiter {
	return k.Policy(Policy{Limiter: l, Settle: true})
}

// planned returns a policy whose limiter requests choose.
func (k Kind[O, K]) planned(l limit.Limiter, plan func(user string) limit.Limiter) limit.Limiter {
	return k.Policy(Policy{Limiter: l, Plan: plan})
}

// rig is middleware, and what its error handler and its observer hear.
type rig struct {
	t      testing.TB
	handle Handler
	errs   Errors
	told   limitertest.Recorder
}

func (k Kind[O, K]) rig(t testing.TB, l limit.Limiter, opts ...O) *rig {
	t.Helper()
	r := &rig{t: t}
	own := []O{k.WithErrorHandler(r.errs.Add), k.WithObserver(&r.told)}
	if !redistest.InBubble() {
		own = append(own, k.WithTimeout(redistest.Patience(0))) // the machine may stall
	}
	r.handle = k.Wrap(t, l, append(own, opts...)...)
	return r
}

// ask makes a request, and checks the result and what the error handler hears.
func (r *rig) ask(want Verdict, heard ...error) Answer {
	r.t.Helper()
	got := r.handle(r.t.Context(), "")
	assert.Equal(r.t, want, got.Verdict)
	r.errs.Check(r.t, heard...)
	return got
}

// outcomes returns those of the decisions since the last time, and checks what they
// have in common.
func (r *rig) outcomes(kind, limiter string, shadow bool) (all []limit.Outcome) {
	r.t.Helper()
	for _, d := range r.told.Decisions() {
		assert.Equal(r.t, kind, d.Call)
		assert.Equal(r.t, limiter, d.Limiter)
		assert.Equal(r.t, shadow, d.Shadow)
		assert.EqualValues(r.t, 1, d.Permits)
		all = append(all, d.Outcome)
	}
	return all
}

// figures returns what an answer of this kind tells.
func (k Kind[O, K]) figures(limit, remaining int64) []int64 {
	if !k.Figures {
		return nil
	}
	return []int64{limit, remaining}
}
