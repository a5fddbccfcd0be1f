// Package httplimit limits the requests that an HTTP handler gets, and with [NewTransport]
// those that a client sends. It is net/http middleware over any [limit.Limiter]:
//
//	perMinute := slidinglog.New(client, slidinglog.Config{Limit: 100, Window: time.Minute})
//	http.ListenAndServe(addr, httplimit.New(perMinute).Handler(handler))
//
// A request goes through these steps:
//
//  1. [WithSkip] may let it pass, and so may [WithCost] and Policy.Cost, with a cost of 0.
//  2. [WithKey] says what the request is counted by. The default is the client's IP
//     address.
//  3. All policies are asked at the same time, for as long as [WithTimeout] allows.
//  4. If all grant it, the handler gets the request, with the same ResponseWriter
//     and with the RateLimit and RateLimit-Policy headers set. Otherwise it is refused:
//     the answer is 429, with Retry-After and a problem description (RFC 9457), and what
//     some policies granted is given back if their limiter is a [limit.Returner].
//
// The handler gets a copy of the request, whose context knows what was decided ([Decisions]). With
// Policy.Settle the handler reports what a request has cost once that is known ([Settle]).
//
// If a limiter does not decide, for example because Redis is down, the answer is 503,
// unless [WithFailure] or [WithFallback] say otherwise. [WithShadow] only watches.
//
// Bad options do not panic. The middleware then answers every request with 500, passes
// limit.ErrInvalidConfig to the hook of [WithErrorHandler], and asks no limiter. [Middleware.Err]
// returns that error when a program starts. A limiter that returns limit.ErrInvalidConfig is answered the
// same way, whatever WithFailure says: passing the request would hide the mistake.
package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/internal/sharedpause"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Middleware limits the requests that handlers get. Make it with [New].
type Middleware struct{ gate *gate }

// New returns middleware that passes requests that limiter grants. By default a request takes
// one permit, under the key "http:" and the client's IP address. What concerns only this limit, such as
// its name, is said by a [Policy] in place of the limiter. A second, different limit needs another
// [WithPrefix] or [WithKey], or must be a policy of the same middleware ([WithPolicy]).
func New(limiter limit.Limiter, opts ...Option) *Middleware {
	return &Middleware{newGate(limiter, false, opts)}
}

// Handler returns a handler that calls next with the requests that pass. Handlers of one Middleware
// share the limits.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.gate.serve(w, r, next) })
}

// Err returns the error that every request passes to [WithErrorHandler] because of bad options, and nil
// if the options are right. Call it when the program starts. It includes the limiters' own errors if they
// have a method Err() error, as all limiters of this module do, but not those of limiters
// that only a Plan returns. It asks no limiter.
func (m *Middleware) Err() error { return m.gate.Err() }

// gate holds what New's options set. It does not change any more.
type gate struct {
	middleware.Policies[*http.Request]

	texts    []policyText // of each policy
	onError  func(*http.Request, error)
	refuse   func(http.ResponseWriter, *http.Request, Refusal)
	headers  Headers
	legacy   bool
	maxPause time.Duration
	pauseOn  func(*http.Response) time.Duration // nil: none
	sharing  sharedpause.Pauses                 // no Client: none
	maxWait  time.Duration                      // below 0: none
}

func (m *gate) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.Invalid != nil {
		m.onError(r, m.Invalid)
		writeError(w, r, m.Invalid)
		return
	}
	questions, err := m.questions(r)
	switch {
	case err != nil && !m.Shadow:
		// This ignores WithFailure, which is about limiters: a client that can make a
		// function fail must not pass.
		writeError(w, r, err)
	case len(questions) == 0:
		m.pass(w, r, next, nil)
	default:
		m.decide(w, r, next, questions)
	}
}

// questions returns what to ask about a request, nothing if it passes without asking. It tells the error
// handler what failed, unless that is the client's fault.
func (m *gate) questions(r *http.Request) ([]middleware.Question, error) {
	questions, err := m.Questions(r)
	if err == nil {
		return questions, nil
	}
	err = fmt.Errorf("httplimit: %w", err)
	if !isGone(r) && (m.Shadow || !isBadCost(err)) {
		m.onError(r, err)
	}
	return nil, err
}

// isGone reports whether the client left: no one reads the answer.
func isGone(r *http.Request) bool { return errors.Is(r.Context().Err(), context.Canceled) }

func (m *gate) decide(w http.ResponseWriter, r *http.Request, next http.Handler, questions []middleware.Question) {
	v := m.AskAll(r.Context(), questions)
	m.report(r, questions, v)
	if m.Shadow {
		m.pass(w, r, next, questions)
		return
	}
	if v.Gone {
		// No client reads the answer, and no limiter is to blame. The status is for the
		// access log.
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	live := middleware.Live(questions)
	switch {
	case v.Refused:
		m.writeHeaders(w.Header(), live, (*middleware.Question).Blocks)
		m.answerRefused(w, r, newRefusal(live))
	case v.Closed:
		writeError(w, r, v.Failure)
	default:
		m.writeHeaders(w.Header(), live, func(*middleware.Question) bool { return true })
		m.pass(w, r, next, questions)
	}
}

// pass calls the handler, which may see the answers and settle what the request was charged.
func (m *gate) pass(w http.ResponseWriter, r *http.Request, next http.Handler, questions []middleware.Question) {
	ctx, record := middleware.WithRecord(r.Context(), m.Settles(), m.Charges())
	record.Set(questions)
	r = r.WithContext(ctx)
	end := m.begin(r, questions)
	if end == nil {
		next.ServeHTTP(w, r)
		return
	}
	of, panicked := &outcome{ResponseWriter: w}, true
	if m.Charges() {
		w = of
	}
	defer func() { end(of.of(ctx, panicked)) }()
	next.ServeHTTP(w, r)
	panicked = false
}

// begin begins a request that has passed: see [middleware.Policies.Begin].
func (m *gate) begin(r *http.Request, questions []middleware.Question) (end func(status int)) {
	return m.Begin(r.Context(), r, questions, func(err error) { m.onError(r, err) })
}

// report tells the observer the result of a request, and the error handler what failed.
func (m *gate) report(r *http.Request, questions []middleware.Question, v middleware.Verdict) {
	v.Report(r.Context(), questions)
	if failure := errors.Join(v.News, v.Kept); failure != nil && !v.Gone {
		m.onError(r, failure)
	}
}
