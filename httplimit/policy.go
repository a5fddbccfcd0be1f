package httplimit

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/ask"
	"github.com/rratelimiter/rratelimiter/internal/keypart"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Policy is one of several limits that a request must pass.
type Policy struct {
	// Name is the policy's name in headers and keys: printable ASCII, such as "burst".
	// It must not be empty, and no other policy may have it.
	Name string

	// Limiter decides. If another policy refuses, what it granted is given back only if
	// it is a limit.Returner.
	Limiter limit.Limiter

	// Plan chooses another limiter than Limiter by the request, as WithPlan says. nil: Limiter
	// decides about all.
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
	// notice if the rate of a key was changed since.
	Window time.Duration

	// Fallback answers while Limiter fails, in place of WithFallback and WithFailure. nil:
	// these options hold for this policy too. If it is a limit.Windowed, its window is
	// reported with its answers.
	Fallback limit.Limiter
}

// policy is a Policy that was checked.
type policy struct {
	name   string
	item   string     // the name as in headers
	limit  *ask.Limit // of its Limiter
	plan   func(*http.Request) limit.Limiter
	keys   []KeyFunc // empty: the middleware's
	prefix string    // how its keys begin
	text   atomic.Pointer[policyText]
}

// setPolicies checks the policies and says how their keys begin.
func (m *middleware) setPolicies(policies []Policy) error {
	alike := 0 // how many policies have the prefix of WithPrefix
	for _, p := range policies {
		if p.Prefix == "" {
			alike++
		}
	}
	names := map[string]bool{}
	for _, p := range policies {
		switch {
		case p.Prefix != "":
		case alike > 1:
			p.Prefix = m.Prefix + keypart.Escape(p.Name) + ":"
		default:
			p.Prefix = m.Prefix
		}
		made, err := m.newPolicy(p)
		if err != nil {
			return err
		}
		if names[p.Name] {
			return fmt.Errorf("two policies are named %q: give each a name of its own", p.Name)
		}
		if err := m.CheckTag(made.prefix); err != nil {
			return err
		}
		for _, other := range m.policies {
			if err := m.checkPrefixes(made, other); err != nil {
				return err
			}
		}
		names[p.Name] = true
		m.policies = append(m.policies, made)
	}
	return nil
}

// checkPrefixes returns an error if two policies' keys could be the same: a client called
// "ip" could make one of "api:ip:" with those of "api:". The brace of a hash tag ends a
// prefix.
func (m *middleware) checkPrefixes(a, b *policy) error {
	if a.prefix != b.prefix && (m.Tagged || !strings.HasPrefix(a.prefix, b.prefix) && !strings.HasPrefix(b.prefix, a.prefix)) {
		return nil
	}
	return fmt.Errorf("the keys of policy %q begin with %q and those of policy %q with %q, so that a key of one could be another's: "+
		"give them prefixes so that neither begins with the other, by Policy.Prefix or WithPrefix",
		b.name, b.prefix, a.name, a.prefix)
}

func (m *middleware) newPolicy(p Policy) (*policy, error) {
	switch {
	case !printable(p.Name):
		return nil, fmt.Errorf("the policy name %q is empty or not printable ASCII", p.Name)
	case p.Limiter == nil:
		return nil, fmt.Errorf("policy %q: the limiter is nil", p.Name)
	case p.Window < 0:
		return nil, fmt.Errorf("policy %q: the window %v is below 0", p.Name, p.Window)
	}
	if ask.AnyNil(p.Key) {
		return nil, fmt.Errorf("policy %q: a key function is nil", p.Name)
	}
	made := &policy{name: p.Name, item: itemOf(p.Name), plan: p.Plan, keys: slices.Clone(p.Key), prefix: p.Prefix}
	var err error
	if made.limit, err = m.Limit(p.Name, p.Prefix, p.Limiter, p.Fallback, p.Window); err != nil {
		return nil, fmt.Errorf("policy %q: %w", p.Name, err)
	}
	return made, nil
}

func printable(name string) bool {
	return name != "" && strings.IndexFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}
