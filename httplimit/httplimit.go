// Package httplimit limits the requests that an HTTP handler gets, and with [NewTransport]
// those that a client sends. It is net/http middleware over any [limit.Limiter]:
//
//	perMinute := slidinglog.New(rdb, slidinglog.Config{Limit: 100, Window: time.Minute})
//	http.ListenAndServe(addr, httplimit.New(perMinute)(handler))
//
// A request goes through these steps:
//
//  1. [WithSkip] may let it pass, and so may [WithCost], by a cost of 0.
//  2. [WithKey] says who or what the limit counts it for, by default the
//     client's IP address.
//  3. Each policy is asked at the same time, for as long as [WithTimeout] allows.
//  4. If all grant it, the handler gets it, with the ResponseWriter as it came
//     and the RateLimit and RateLimit-Policy headers set. Else it is refused:
//     429 with Retry-After and a problem description (RFC 9457), and what some of
//     the policies granted is given back, where the limiter is a
//     [limit.Returner].
//
// With [WithSettle] the handler says what a request has cost when that is known ([Settle]).
//
// When a limiter does not decide, as all do when Redis is down, the answer is 503
// unless [WithFailure] or [WithFallback] says otherwise. [WithShadow] only watches.
//
// Options that make no sense do not panic. They make the middleware answer 500
// to everything and give limit.ErrInvalidConfig to the hook of
// [WithErrorHandler]; no limiter is asked. [Check] returns the error before. A limiter that reports
// limit.ErrInvalidConfig of itself is answered so too, whatever WithFailure says:
// to pass would hide the mistake.
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

// New returns middleware that passes what limiter grants: the policy named
// "default", unless [WithName] says otherwise. The zero set of options counts
// one permit a request for each IP address, under the keys "http:" + address:
// a second limit that differs needs another [WithPrefix] or [WithKey], or be one
// of the same middleware's policies ([WithPolicy]).
//
// Several handlers may be given to what it returns; they share the limits.
func New(limiter limit.Limiter, opts ...Option) func(http.Handler) http.Handler {
	m := newMiddleware(limiter, false, opts)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			m.serve(w, r, next)
		})
	}
}

// middleware is what New's options came to. It does not change any more.
type middleware struct {
	ask.Options

	err      error // what is wrong with the options
	policies []*policy
	keys     []KeyFunc
	cost     func(*http.Request) int64
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
	n := m.costOf(r)
	if n <= 0 {
		m.pass(w, r, next, nil)
		return
	}
	results, err := m.questions(r)
	if err != nil {
		m.onError(r, err)
		if m.Shadow {
			m.pass(w, r, next, nil)
			return
		}
		// Whatever WithFailure says: it is about limiters, and a client that can make a
		// key function fail must not go free.
		writeError(w, r, err)
		return
	}
	m.decide(w, r, next, results, n)
}

// costOf returns how many permits a request takes. At 0 or less it passes.
func (m *middleware) costOf(r *http.Request) int64 {
	switch {
	case m.skip != nil && m.skip(r):
		return 0
	case m.cost != nil:
		return m.cost(r)
	default:
		return 1
	}
}

func (m *middleware) decide(w http.ResponseWriter, r *http.Request, next http.Handler, results []result, n int64) {
	ctx := r.Context()
	v := m.askAll(ctx, results, n)
	m.report(r, results, n, v)
	if m.Shadow {
		if v.refused || v.closed || v.gone {
			results = nil // what some granted was given back
		}
		m.pass(w, r, next, results)
		return
	}
	if v.gone {
		// Nobody reads the answer, and no limiter is to blame. The status is for
		// the access log.
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	switch {
	case v.refused:
		m.writeHeaders(w.Header(), results, func(r *result) bool { return r.blocks(n) })
		m.answerRefused(w, r, newRefusal(results, n))
	case v.closed:
		writeError(w, r, v.failure)
	default:
		m.writeHeaders(w.Header(), results, func(*result) bool { return true })
		m.pass(w, r, next, results)
	}
}

// pass has the handler answer a request, which may settle what results say it was charged.
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

// askAll asks all policies, and gives back what some granted where the request does not pass.
func (m *middleware) askAll(ctx context.Context, results []result, n int64) verdict {
	m.ask(ctx, results, n)
	v := judge(results)
	v.gone = v.failure != nil && errors.Is(ctx.Err(), context.Canceled)
	if v.refused || v.closed || v.gone {
		v.kept = m.giveBack(ctx, results, n)
	}
	return v
}

// report tells the observer what came of a request, and the error handler what failed.
func (m *middleware) report(r *http.Request, results []result, n int64, v verdict) {
	for i := range results {
		results[i].Report(r.Context(), "httplimit", n)
	}
	if failure := errors.Join(v.failure, v.kept); failure != nil && !v.gone {
		m.onError(r, failure)
	}
}

// verdict is what the results of all policies come to.
type verdict struct {
	refused bool  // at least one refused
	closed  bool  // at least one failed, and its failure closes
	failure error // of those that failed, fallbacks or not
	kept    error // why grants could not be given back
	gone    bool  // the client left before there was a decision: no limiter is to blame
}

func judge(results []result) verdict {
	var v verdict
	var failures []error
	for i := range results {
		res := &results[i]
		v.refused = v.refused || res.refused()
		v.closed = v.closed || res.State == ask.Closed
		if res.Failure != nil {
			failures = append(failures, fmt.Errorf("httplimit: policy %q: %w", res.policy.name, res.Failure))
		}
	}
	v.failure = errors.Join(failures...)
	return v
}
