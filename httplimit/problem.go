package httplimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Refusal describes a refused request.
type Refusal struct {
	// Policies are the policies that answered, in the order of the options.
	Policies []Decided

	// Violated are the names of the policies that refused.
	Violated []string

	// RetryAfter is how long it takes until the same request could pass all policies. It
	// is 0 if waiting does not help, because the request costs more than can be granted at
	// once.
	RetryAfter time.Duration
}

// Decided is the decision of one policy.
type Decided struct {
	Name string

	// Decision has only the Limit, if that is known, for a request that costs more than
	// the limit. If the policy granted a request that was refused, the figures are
	// those after the permits were given back; ResetAfter may then be too long.
	limit.Decision
}

func newRefusal(questions []middleware.Question) Refusal {
	refusal := Refusal{RetryAfter: middleware.RetryAfter(questions)}
	for i := range questions {
		q := &questions[i]
		if !q.Decided() && !q.Refused() {
			continue
		}
		refusal.Policies = append(refusal.Policies, Decided{q.Limit.Name, q.Decision})
		if q.Refused() {
			refusal.Violated = append(refusal.Violated, q.Limit.Name)
		}
	}
	return refusal
}

func (m *gate) answerRefused(w http.ResponseWriter, r *http.Request, refusal Refusal) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if refusal.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(seconds(refusal.RetryAfter), 10))
	}
	if m.refuse != nil {
		m.refuse(w, r, refusal)
		return
	}
	p := problem{
		Type:     "https://iana.org/assignments/http-problem-types#quota-exceeded",
		Title:    "Request cannot be satisfied as assigned quota has been exceeded",
		Status:   http.StatusTooManyRequests,
		Detail:   "The request costs more than can be granted at once.",
		Violated: refusal.Violated,
	}
	if refusal.RetryAfter > 0 {
		p.Detail = fmt.Sprintf("The same request can pass in %d s.", seconds(refusal.RetryAfter))
	}
	p.write(w, r)
}

// unavailableRetry is the Retry-After, in seconds, of an answer without a decision.
const unavailableRetry = "5"

// writeError answers a request that could not be decided because of err.
func writeError(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case isGone(r):
		w.WriteHeader(http.StatusServiceUnavailable) // for the access log
	case errors.Is(err, limit.ErrInvalidConfig):
		misconfigured.write(w, r)
	case isBadCost(err):
		badCost(err).write(w, r)
	default:
		w.Header().Set("Retry-After", unavailableRetry)
		undecided.write(w, r)
	}
}

// isBadCost reports whether the cost of the request can't be found out, which is the client's fault.
func isBadCost(err error) bool {
	of, ok := errors.AsType[*middleware.FuncError](err)
	return ok && of.What == "cost" && !errors.Is(err, limit.ErrInvalidConfig)
}

// problem is a problem description of RFC 9457.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail"`
	Violated []string `json:"violated-policies,omitempty"`
}

var (
	undecided = problem{
		Type:   "about:blank",
		Title:  http.StatusText(http.StatusServiceUnavailable),
		Status: http.StatusServiceUnavailable,
		Detail: "The rate limit could not be checked.",
	}
	misconfigured = problem{
		Type:   "about:blank",
		Title:  http.StatusText(http.StatusInternalServerError),
		Status: http.StatusInternalServerError,
		Detail: "The rate limit is not configured properly.",
	}
)

// badCost is the answer to a request whose cost can't be found out, for example because its body can't be read.
func badCost(err error) problem {
	status := http.StatusBadRequest
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		status = http.StatusRequestEntityTooLarge
	}
	return problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: "The cost of the request is unknown."}
}

func (p problem) write(w http.ResponseWriter, r *http.Request) {
	// Strings and a number: it does not fail.
	body, _ := json.Marshal(p)
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(p.Status)
	if r.Method != http.MethodHead {
		// If the client is gone, no one reads it.
		_, _ = w.Write(body)
	}
}
