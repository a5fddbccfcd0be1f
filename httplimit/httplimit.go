// Package httplimit limits the requests that an HTTP handler gets, and with [NewTransport]
// those that a client sends. It is net/http middleware over any [limit.Limiter]:
//
//	perMinute := slidinglog.New(rdb, slidinglog.Config{Limit: 100, Window: time.Minute})
//	http.ListenAndServe(addr, httplimit.New(perMinute)(handler))
//
// A request goes through these steps:
//
//  1. [WithSkip] may let it pass, and so may [WithCost], with a cost of 0.
//  2. [WithKey] says what the request is counted by. The default is the client's IP
//     address.
//  3. All policies are asked at the same time, for as long as [WithTimeout] allows.
//  4. If all grant it, the handler gets the request, with the same ResponseWriter
//     and with the RateLimit and RateLimit-Policy headers set. Otherwise it is refused:
//     the answer is 429, with Retry-After and a problem description (RFC 9457), and what
//     some policies granted is given back if their limiter is a [limit.Returner].
//
// With [WithSettle] the handler reports what a request has cost once that is known ([Settle]).
//
// If a limiter does not decide, for example because Redis is down, the answer is 503,
// unless [WithFailure] or [WithFallback] say otherwise. [WithShadow] only watches.
//
// Bad options do not panic. The middleware then answers every request with 500, passes
// limit.ErrInvalidConfig to the hook of [WithErrorHandler], and asks no limiter. [Check] returns
// that error when a program starts. A limiter that returns limit.ErrInvalidConfig is answered the
// same way, whatever WithFailure says: passing the request would hide the mistake.
package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/ask"
	"github.com/rratelimiter/rratelimiter/limit"
)

// New returns middleware that passes requests that limiter grants. By default a request takes
// one permit, under the key "http:" and the client's IP address, and the policy's name is "default"
// ([WithName]). A second, different limit needs another [WithPrefix] or [WithKey], or must be a policy
// of the same middleware ([WithPolicy]).
//
// The returned function can wrap several handlers; they share the limits.
func New(limiter limit.Limiter, opts ...Option) func(http.Handler) http.Handler {
	m := newMiddleware(limiter, false, opts)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			m.serve(w, r, next)
		})
	}
}

// middleware holds what New's options set. It does not change any more.
type middleware struct {
	ask.Options

	err      error // what is wrong with the options
	policies []*policy
	keys     []KeyFunc
	cost     func(*http.Request) (int64, error)
	skip     func(*http.Request) bool
	onError  func(*http.Request, error)
	refuse   func(http.ResponseWriter, *http.Request, Refusal)
	headers  Headers
	legacy   bool
	maxPause time.Duration
	maxWait  time.Duration // below 0: none
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.err != nil {
		m.onError(r, m.err)
		writeError(w, r, m.err)
		return
	}
	results, err := m.questions(r)
	if err != nil {
		m.onError(r, err)
		if m.Shadow {
			m.pass(w, r, next, nil)
			return
		}
		// This ignores WithFailure, which is about limiters: a client that can make a
		// function fail must not pass.
		writeError(w, r, err)
		return
	}
	if len(results) == 0 {
		m.pass(w, r, next, nil)
		return
	}
	m.decide(w, r, next, results)
}

// costOf returns how many permits a request takes. At 0 or less it passes.
func (m *middleware) costOf(r *http.Request) (int64, error) {
	switch {
	case m.skip != nil && m.skip(r):
		return 0, nil
	case m.cost != nil:
		n, err := m.cost(r)
		if err != nil {
			err = &costError{err}
		}
		return n, err
	default:
		return 1, nil
	}
}

// costError is the error of a function of [WithCost].
type costError struct{ err error }

func (e *costError) Error() string { return "httplimit: cost: " + e.err.Error() }

func (e *costError) Unwrap() error { return e.err }

func (m *middleware) decide(w http.ResponseWriter, r *http.Request, next http.Handler, results []result) {
	ctx := r.Context()
	v := m.askAll(ctx, results)
	m.report(r, results, v)
	if m.Shadow {
		if v.refused || v.closed || v.gone {
			results = nil // what some granted was given back
		}
		m.pass(w, r, next, results)
		return
	}
	if v.gone {
		// No client reads the answer, and no limiter is to blame. The status is for the
		// access log.
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	switch {
	case v.refused:
		m.writeHeaders(w.Header(), results, (*result).blocks)
		m.answerRefused(w, r, newRefusal(results))
	case v.closed:
		writeError(w, r, v.failure)
	default:
		m.writeHeaders(w.Header(), results, func(*result) bool { return true })
		m.pass(w, r, next, results)
	}
}

// pass calls the handler, which may settle what the request was charged according to results.
func (m *middleware) pass(w http.ResponseWriter, r *http.Request, next http.Handler, results []result) {
	if m.Settled {
		ctx, settlement := ask.WithSettlement(r.Context())
		questions := make([]*ask.Question, len(results))
		for i := range results {
			questions[i] = &results[i].Question
		}
		settlement.Charge(questions...)
		r = r.WithContext(ctx)
	}
	next.ServeHTTP(w, r)
}

// askAll asks all policies, and gives back what some granted if the request does not pass.
func (m *middleware) askAll(ctx context.Context, results []result) verdict {
	m.ask(ctx, results)
	v := judge(results)
	v.gone = v.failure != nil && errors.Is(ctx.Err(), context.Canceled)
	if v.refused || v.closed || v.gone {
		v.kept = m.giveBack(ctx, results)
	}
	return v
}

// report tells the observer the result of a request, and the error handler what failed.
func (m *middleware) report(r *http.Request, results []result, v verdict) {
	for i := range results {
		results[i].Report(r.Context(), "httplimit")
	}
	if failure := errors.Join(v.news, v.kept); failure != nil && !v.gone {
		m.onError(r, failure)
	}
}

// verdict sums up the results of all policies.
type verdict struct {
	refused bool  // at least one refused
	closed  bool  // at least one failed, and its failure closes
	failure error // of those that failed, whatever answered in their place
	news    error // what of that the error handler learns
	kept    error // why grants could not be given back
	gone    bool  // the client left before there was a decision: no limiter is to blame
}

func judge(results []result) verdict {
	var v verdict
	var failures, news []error
	for i := range results {
		res := &results[i]
		v.refused = v.refused || res.refused()
		v.closed = v.closed || res.State == ask.Closed
		if res.Failure != nil {
			failure := fmt.Errorf("httplimit: policy %q: %w", res.policy.name, res.Failure)
			failures = append(failures, failure)
			if res.News() != nil {
				news = append(news, failure)
			}
		}
	}
	v.failure, v.news = errors.Join(failures...), errors.Join(news...)
	return v
}
