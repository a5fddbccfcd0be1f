package httplimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Refusal is what is known of a refused request.
type Refusal struct {
	// Policies are those that have answered, in the order of the options.
	Policies []PolicyDecision

	// Violated are the names of those that refused.
	Violated []string

	// RetryAfter is how long it takes until the same request could pass all
	// policies, 0 where waiting does not help: it costs more than can be granted
	// at once.
	RetryAfter time.Duration
}

// PolicyDecision is what one policy said.
type PolicyDecision struct {
	Name string

	// Decision has the Limit alone, if that, where the request costs more than
	// the limit. Where the policy granted it and another did not, its figures are
	// those after the permits were given back; ResetAfter may be too long then.
	limit.Decision
}

func newRefusal(results []result, n int64) Refusal {
	var refusal Refusal
	hopeless := false
	for i := range results {
		res := &results[i]
		if !res.decided() && !res.refused() {
			continue
		}
		refusal.Policies = append(refusal.Policies, PolicyDecision{res.policy.name, res.Decision})
		if res.blocks(n) {
			refusal.RetryAfter = max(refusal.RetryAfter, res.wait())
		}
		if res.refused() {
			refusal.Violated = append(refusal.Violated, res.policy.name)
			hopeless = hopeless || res.hopeless()
		}
	}
	if hopeless {
		refusal.RetryAfter = 0
	}
	return refusal
}

func (m *middleware) answerRefused(w http.ResponseWriter, r *http.Request, refusal Refusal) {
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

// unavailableRetry is the Retry-After, in seconds, of an answer without a
// decision.
const unavailableRetry = "5"

// writeError answers a request on which err allowed no decision.
func writeError(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, limit.ErrInvalidConfig) {
		misconfigured.write(w, r)
		return
	}
	w.Header().Set("Retry-After", unavailableRetry)
	undecided.write(w, r)
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

func (p problem) write(w http.ResponseWriter, r *http.Request) {
	// Strings and a number: it does not fail.
	body, _ := json.Marshal(p)
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(p.Status)
	if r.Method != http.MethodHead {
		// If the client is gone there is nobody to tell.
		_, _ = w.Write(body)
	}
}
