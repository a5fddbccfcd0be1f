package httplimit

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/rratelimiter/rratelimiter/internal/ask"
)

// Headers chooses the headers that describe limits to clients. Retry-After is always sent.
type Headers int

const (
	// Draft11 sends RateLimit and RateLimit-Policy as in
	// draft-ietf-httpapi-ratelimit-headers-11, with one list member for each policy:
	//
	//	RateLimit-Policy: "default";q=100;w=60
	//	RateLimit: "default";r=50;t=30
	//
	// The quota is q permits in w seconds; r of them are left. After t seconds there are
	// more: enough for the same request if the policy refused, otherwise all of q. In a 429
	// only policies that keep the same request from passing have a t, and Retry-After is the
	// longest of these: so it is never earlier than a t, as the draft requires. If a request
	// costs more than q, only the policy's q is sent.
	Draft11 Headers = iota

	// NoHeaders sends none of them.
	NoHeaders
)

// maxInteger is the greatest Integer of RFC 9651.
const maxInteger = 999_999_999_999_999

// policyText is a policy's last member of RateLimit-Policy, kept because it rarely changes.
type policyText struct {
	limit  int64
	window time.Duration
	text   string
}

func (p *policy) member(limit int64, window time.Duration) string {
	if last := p.text.Load(); last != nil && last.limit == limit && last.window == window {
		return last.text
	}
	text := parameter([]byte(p.item), ";q=", limit)
	if window >= time.Second {
		text = parameter(text, ";w=", seconds(window))
	}
	kept := &policyText{limit, window, string(text)}
	p.text.Store(kept)
	return kept.text
}

func (r *result) member(timed bool) string {
	text := parameter(append(make([]byte, 0, 64), r.policy.item...), ";r=", r.Decision.Remaining)
	if wait := r.wait(); wait > 0 && timed {
		text = parameter(text, ";t=", seconds(wait))
	}
	return string(text)
}

// parameter adds a number to an item. httpsfv would take most of the time of an answer
// from memory.
func parameter(item []byte, name string, n int64) []byte {
	return strconv.AppendInt(append(item, name...), integer(n), 10)
}

// itemOf returns a name as an Item of RFC 9651. It is printable, so that this can't fail.
func itemOf(name string) string {
	text, _ := httpsfv.Marshal(httpsfv.NewItem(name))
	return text
}

// writeHeaders adds the policies that have answered to the lists; another middleware around
// this one may have written there too. timed holds the policies for which clients learn when
// there is more.
func (m *middleware) writeHeaders(h http.Header, results []result, timed func(*result) bool) {
	if m.headers == Draft11 {
		writeDraft(h, results, timed)
	}
	if m.legacy {
		writeLegacy(h, results)
	}
}

func writeDraft(h http.Header, results []result, timed func(*result) bool) {
	var few [2][4]string
	policies, limits := few[0][:0], few[1][:0]
	for i := range results {
		res := &results[i]
		if res.decided() || res.Decision.Limit > 0 {
			policies = append(policies, res.policy.member(res.Decision.Limit, res.window()))
		}
		if res.decided() {
			limits = append(limits, res.member(timed(res)))
		}
	}
	// The names as net/http writes them, so that it need not make them each time.
	if len(policies) > 0 {
		h.Add("Ratelimit-Policy", strings.Join(policies, ", "))
	}
	if len(limits) > 0 {
		h.Add("Ratelimit", strings.Join(limits, ", "))
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
		reset := time.Now().Add(wait).Add(time.Second - 1) // wait may be too long for a sum
		h.Set("X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
	}
}

// window is the window of the limiter that answered.
func (r *result) window() time.Duration {
	if r.Window > 0 {
		return r.Window
	}
	return r.Limit.Window()
}

// blocks reports whether the same request would have to wait for this policy: because it
// refused, or because what it granted to the refused request stays taken and leaves too few.
func (r *result) blocks() bool {
	return r.refused() || r.decided() && !r.returned && r.Decision.Remaining < r.Permits
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

// wait is how long it takes until the policy has more to give, 0 if it has all or
// never will.
func (r *result) wait() time.Duration {
	switch {
	case r.State == ask.Granted:
		return max(0, r.Decision.ResetAfter)
	case r.hopeless():
		return 0
	}
	// A refusal without a time: soon, but not at once.
	return max(1, r.Decision.RetryAfter)
}

// hopeless reports whether no waiting turns the refusal into a grant.
func (r *result) hopeless() bool {
	return r.State == ask.TooCostly || r.State == ask.Refused && ask.Never(r.Decision)
}

// seconds rounds up, so that a client that waits that long does not come too early.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

func integer(n int64) int64 { return min(max(0, n), maxInteger) }
