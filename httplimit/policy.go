package httplimit

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Policy is a limit that a request must pass, and all that concerns only this limit. [New] and [NewTransport]
// take one in place of a limiter, and [WithPolicy] adds others:
//
//	httplimit.New(httplimit.Policy{Name: "requests", Limiter: requests},
//		httplimit.WithPolicy(httplimit.Policy{Name: "tokens", Limiter: tokens, Cost: estimate, Settle: true}))
type Policy struct {
	// Name is the policy's name in headers and keys: printable ASCII, such as "burst".
	// No other policy may have it. Empty, for New's policy only: "default".
	Name string

	// Limiter decides. If another policy refuses, what it granted is given back only if
	// it is a limit.Returner. It must not be a Policy.
	limit.Limiter

	// Plan chooses another limiter than Limiter by the request, for example by the user's plan. If it
	// returns nil, Limiter decides: no request is without a limit. The limiters share all else that the
	// policy says. Limiters of Client.Keyed need different prefixes there; fixed windows of all plans may
	// count at the same keys. nil: Limiter decides about all.
	Plan func(*http.Request) limit.Limiter

	// Key says what the policy counts requests by, such as addresses if the others
	// count users. Empty: as WithKey says.
	Key []KeyFunc

	// Prefix is how the policy's keys begin, without the policy's name, for example to use
	// keys that other services use too. Empty: as WithPrefix says, followed by the name if
	// several policies have that prefix. No policy's prefix may be equal to another one's, or
	// begin with it. With WithHashTag it may begin with it.
	Prefix string

	// Window is the length of the limit's window, for the "w" of RateLimit-Policy: whole
	// seconds, rounded up; a window below a second is left out. 0: what the Limiter says, if
	// it is a limit.Windowed. That is what it was configured with: Client.Keyed does not
	// notice if the rate of a key was changed since, and Client.KeyedFunc knows none.
	Window time.Duration

	// Unit is what the limit counts, if not requests, for the "qu" of RateLimit-Policy: printable ASCII, such as
	// "tokens", "content-bytes" or, with InFlight, "concurrent-requests". Empty: there is no qu, which stands for requests.
	Unit string

	// Cost says how many permits a request takes of this policy, in place of WithCost. At 0 or less the
	// policy lets it pass unasked. It is called for each policy that has it: read a body before, or in
	// WithCost, which is called once. nil: as WithCost says.
	Cost func(*http.Request) (int64, error)

	// Settle makes the cost an estimate that the handler corrects with Settle. A Limiter that is a
	// limit.Reserver reserves the permits, such as those of package fixedwindow and of Client.Keyed; the
	// latter takes a script call that it shares with no other request. Other limiters decide as if it were
	// not set, and Err names them. An estimate above the limit takes the whole limit, and Settle charges the
	// rest. A transport has no handler, so it is an error there.
	Settle bool

	// Charge says what a request costs once its status is known, for example 1 for a failed login and 0 for all else. Until
	// then it costs what Cost says, an estimate as with Settle. A handler that calls Settle wins, unless a policy has Settle.
	// The status is the one that the handler has written; 101 if it took the connection over; 200 if it has written nothing,
	// but 500 after a panic and StatusClientGone if the client has left. The handler gets a ResponseWriter that notes it. In
	// a transport it is the response's, once that has ended, and 0 if there is none. nil: the cost stays.
	Charge func(r *http.Request, status int) int64

	// InFlight makes the policy limit how many requests are handled at the same time: what a request took comes back
	// when its handler has returned, or of a transport, when the response's Body is closed or was read to its end. Until
	// then it is renewed, so the limiter's interval, or Hold, only bounds how long a program that was killed keeps it. The
	// Limiter must be a limit.Reserver, but no fixed window; Err names others. docs/at-once.md has more.
	InFlight bool

	// Hold makes what was taken come back after that time if its request is neither settled nor renewed, since its program
	// has died. See rratelimiter.Hold. Only limiters of Client.Keyed have it; Err names others. 0: the limiter's interval.
	Hold time.Duration

	// Shadow makes the policy only watch: it decides, and charges what it grants, but lets each request pass, and no
	// header shows it. Observers receive its answers, with Shadow set, to requests that all other policies let pass.
	// A Limiter of this module with WithShadow is such a policy too.
	Shadow bool

	// Fallback answers while Limiter fails, in place of WithFallback and WithFailure. nil:
	// these options hold for this policy too. The limiter's or its Client's own WithFailure
	// comes before all of them. If Fallback is a limit.Windowed, its window is reported with
	// its answers.
	Fallback limit.Limiter

	mark //nolint:unused // package middleware looks for its method
}

type mark = middleware.Mark //nolint:unused // an alias, so that the field has no exported name

// policyOf returns the policy that New's limiter is.
func policyOf(limiter limit.Limiter) Policy {
	p, ok := limiter.(Policy)
	if !ok {
		p.Limiter = limiter
	}
	p.Name = cmp.Or(p.Name, "default")
	return p
}

// setPolicies checks the policies.
func (m *gate) setPolicies(policies []Policy, keys []KeyFunc) error {
	var faults []error
	all := make([]middleware.Policy[*http.Request], len(policies))
	m.texts = make([]policyText, len(policies))
	for i, p := range policies {
		if !printable(p.Name) {
			return fmt.Errorf("the policy name %q is empty or not printable ASCII", p.Name)
		}
		if p.Unit != "" && !printable(p.Unit) {
			return fmt.Errorf("policy %q: the unit %q is not printable ASCII", p.Name, p.Unit)
		}
		m.texts[i].item = itemOf(p.Name)
		if p.Unit != "" {
			m.texts[i].unit = ";qu=" + itemOf(p.Unit)
		}
		keys = append(slices.Clip(keys), p.Key...)
		all[i] = middleware.Policy[*http.Request]{
			Terms: middleware.Terms{
				Name: p.Name, Limiter: p.Limiter, Prefix: p.Prefix, Length: p.Window, Fallback: p.Fallback, Settle: p.Settle,
				InFlight: p.InFlight, Hold: p.Hold, Shadow: p.Shadow,
			},
			Plan: p.Plan, Keys: functions(p.Key), Cost: p.Cost, Charge: p.Charge,
		}
	}
	for _, key := range keys {
		faults = append(faults, faultOf(key))
	}
	return errors.Join(m.SetPolicies(all), errors.Join(faults...))
}

// functions returns key functions as package middleware has them.
func functions(keys []KeyFunc) []func(*http.Request) (string, error) {
	all := make([]func(*http.Request) (string, error), len(keys))
	for i, key := range keys {
		all[i] = key
	}
	return all
}

func printable(name string) bool {
	return name != "" && strings.IndexFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}
