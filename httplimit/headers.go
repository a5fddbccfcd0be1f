package httplimit

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/rratelimiter/rratelimiter/internal/ask"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Headers is a choice of headers that tell clients of their limits. Retry-After
// is always there.
type Headers int

const (
	// Draft11 stands for RateLimit and RateLimit-Policy as
	// draft-ietf-httpapi-ratelimit-headers-11 has them, one list member for each
	// policy:
	//
	//	RateLimit-Policy: "default";q=100;w=60
	//	RateLimit: "default";r=50;t=30
	//
	// The quota is q permits in w seconds. r of them are left, and in t seconds
	// there are more: where the policy refused, enough for the same request, else
	// all of q. An answer of 429 has a t only for the policies that stand in the
	// way of the same request, and Retry-After is the longest of these: so it is
	// never earlier than a t, as the draft asks. Where a request costs more than q,
	// the policy's q is all that is said.
	Draft11 Headers = iota

	// NoHeaders stands for none of them.
	NoHeaders
)

// maxInteger is the greatest Integer of RFC 9651.
const maxInteger = 999_999_999_999_999

// policyText is a policy's last member of RateLimit-Policy: it hardly ever
// changes.
type policyText struct {
	limit  int64
	window time.Duration
	text   string
}

func (p *policy) member(limit int64, window time.Duration) string {
	if last := p.text.Load(); last != nil && last.limit == limit && last.window == window {
		return last.text
	}
	item := httpsfv.NewItem(p.name)
	item.Params.Add("q", integer(limit))
	if window >= time.Second {
		item.Params.Add("w", integer(seconds(window)))
	}
	text := marshal(item)
	p.text.Store(&policyText{limit, window, text})
	return text
}

func (r *result) member(timed bool) string {
	item := httpsfv.NewItem(r.policy.name)
	item.Params.Add("r", integer(r.Decision.Remaining))
	if wait := r.wait(); wait > 0 && timed {
		item.Params.Add("t", integer(seconds(wait)))
	}
	return marshal(item)
}

// marshal cannot fail: names and numbers are in range.
func marshal(item httpsfv.Item) string {
	text, _ := httpsfv.Marshal(item)
	return text
}

// writeHeaders tells of the policies that have answered. It adds to the lists,
// as another limit around this one may have written to them. timed tells of which
// policies clients are to know when there is more.
func (m *middleware) writeHeaders(h http.Header, results []result, timed func(*result) bool) {
	if m.headers == Draft11 {
		writeDraft(h, results, timed)
	}
	if m.legacy {
		writeLegacy(h, results)
	}
}

func writeDraft(h http.Header, results []result, timed func(*result) bool) {
	var policies, limits []string
	for i := range results {
		res := &results[i]
		if res.decided() || res.Decision.Limit > 0 {
			policies = append(policies, res.policy.member(res.Decision.Limit, res.window()))
		}
		if res.decided() {
			limits = append(limits, res.member(timed(res)))
		}
	}
	if len(policies) > 0 {
		h.Add("RateLimit-Policy", strings.Join(policies, ", "))
	}
	if len(limits) > 0 {
		h.Add("RateLimit", strings.Join(limits, ", "))
	}
}

func writeLegacy(h http.Header, results []result) {
	var tightest *result
	for i := range results {
		if res := &results[i]; res.decided() && (tightest == nil || res.tighter(tightest)) {
			tightest = res
		}
	}
	if tightest == nil {
		return
	}
	d := tightest.Decision
	h.Set("X-RateLimit-Limit", strconv.FormatInt(d.Limit, 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(max(0, d.Remaining), 10))
	if wait := tightest.wait(); wait > 0 || d.Granted {
		reset := time.Now().Add(wait + time.Second - 1)
		h.Set("X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
	}
}

// window is the span of the limit of the one that answered.
func (r *result) window() time.Duration {
	if fallback, ok := r.Asked.(limit.Windowed); ok && r.Failure != nil {
		return fallback.Window()
	}
	return r.policy.span()
}

// blocks reports whether the same request, of cost n, would have to wait for this policy:
// it refused, or what it granted to the refused request stays taken and leaves too few.
func (r *result) blocks(n int64) bool {
	return r.refused() || r.decided() && !r.returned && r.Decision.Remaining < n
}

func (r *result) decided() bool { return r.State == ask.Granted || r.State == ask.Refused }

// tighter reports whether r says more about what a client can do than other.
func (r *result) tighter(other *result) bool {
	if r.refused() != other.refused() {
		return r.refused()
	}
	if r.refused() {
		return r.wait() > other.wait()
	}
	return r.Decision.Remaining < other.Decision.Remaining
}

// wait is how long it takes until the policy has more to give, 0 if it has all
// or never will.
func (r *result) wait() time.Duration {
	switch {
	case r.State == ask.Granted:
		return max(0, r.Decision.ResetAfter)
	case r.hopeless():
		return 0
	}
	// A refusal that says no time: soon, but not at once.
	return max(1, r.Decision.RetryAfter)
}

// hopeless tells of a refusal that no waiting turns into a grant.
func (r *result) hopeless() bool {
	return r.State == ask.TooCostly || r.State == ask.Refused && r.Decision.Limit <= 0
}

// seconds rounds up, so that who waits so long does not come too early.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

func integer(n int64) int64 { return min(max(0, n), maxInteger) }
