package httplimit

import (
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/rratelimiter/rratelimiter/internal/middleware"
)

// Headers chooses the headers that describe limits to clients. Retry-After is always sent.
type Headers int

const (
	// StandardHeaders sends RateLimit and RateLimit-Policy as in
	// draft-ietf-httpapi-ratelimit-headers-11, with one list member for each policy:
	//
	//	RateLimit-Policy: "default";q=100;w=60
	//	RateLimit: "default";r=50;t=30
	//
	// The quota is q permits in w seconds; r of them are left. A Policy.Unit is its qu. After t seconds there are
	// more: enough for the same request if the policy refused, otherwise all of q. In a 429
	// only policies that keep the same request from passing have a t, and Retry-After is the
	// longest of these: so it is never earlier than a t, as the draft requires. If a request
	// costs more than q, only the policy's q is sent.
	StandardHeaders Headers = iota

	// NoHeaders sends none of them.
	NoHeaders
)

// maxInteger is the greatest Integer of RFC 9651.
const maxInteger = 999_999_999_999_999

// policyText is how headers write a policy.
type policyText struct {
	item string // its name
	unit string // the parameter qu, if it has one
	last atomic.Pointer[policyMember]
}

// policyMember is a policy's last member of RateLimit-Policy, kept because it rarely changes.
type policyMember struct {
	limit  int64
	window time.Duration
	text   string
}

func (p *policyText) member(limit int64, window time.Duration) string {
	if last := p.last.Load(); last != nil && last.limit == limit && last.window == window {
		return last.text
	}
	text := append(parameter([]byte(p.item), ";q=", limit), p.unit...)
	if window >= time.Second {
		text = parameter(text, ";w=", seconds(window))
	}
	kept := &policyMember{limit, window, string(text)}
	p.last.Store(kept)
	return kept.text
}

// state is the policy's member of RateLimit.
func (p *policyText) state(q *middleware.Question, timed bool) string {
	text := parameter(append(make([]byte, 0, 64), p.item...), ";r=", q.Decision.Remaining)
	if wait := q.Wait(); wait > 0 && timed {
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
func (m *gate) writeHeaders(h http.Header, questions []middleware.Question, timed func(*middleware.Question) bool) {
	if m.headers == StandardHeaders {
		m.writeStandard(h, questions, timed)
	}
	if m.legacy {
		writeLegacy(h, questions)
	}
}

func (m *gate) writeStandard(h http.Header, questions []middleware.Question, timed func(*middleware.Question) bool) {
	var few [2][4]string
	policies, limits := few[0][:0], few[1][:0]
	for i := range questions {
		q := &questions[i]
		text := &m.texts[q.Place]
		if q.Decided() || q.Decision.Limit > 0 {
			policies = append(policies, text.member(q.Decision.Limit, window(q)))
		}
		if q.Decided() {
			limits = append(limits, text.state(q, timed(q)))
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

func writeLegacy(h http.Header, questions []middleware.Question) {
	var tightest *middleware.Question
	for i := range questions {
		if q := &questions[i]; q.Decided() && (tightest == nil || tighter(q, tightest)) {
			tightest = q
		}
	}
	if tightest == nil {
		return
	}
	d := tightest.Decision
	h.Set("X-RateLimit-Limit", strconv.FormatInt(d.Limit, 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(max(0, d.Remaining), 10))
	if wait := tightest.Wait(); wait > 0 || d.Granted {
		reset := time.Now().Add(wait).Add(time.Second - 1) // wait may be too long for a sum
		h.Set("X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
	}
}

// window is the window of the limiter that answered; 0 if it limits what is in flight.
func window(q *middleware.Question) time.Duration {
	if q.Limit.InFlight {
		return 0
	}
	if q.Window > 0 {
		return q.Window
	}
	return q.Limit.Window()
}

// tighter reports whether q says more about what a client can do than other.
func tighter(q, other *middleware.Question) bool {
	if q.Refused() != other.Refused() {
		return q.Refused()
	}
	if q.Refused() {
		return q.Wait() > other.Wait()
	}
	return q.Decision.Remaining < other.Decision.Remaining
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
