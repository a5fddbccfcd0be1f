package httplimit

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Policy is one of several limits that a request must pass.
type Policy struct {
	// Name is what clients and keys know the policy by: printable ASCII, such
	// as "burst". It must not be empty, and each name is used once.
	Name string

	// Limiter decides. What it grants is only given back, where another policy
	// refuses, if it is a limit.Returner.
	Limiter limit.Limiter

	// Key says what the policy counts requests by, such as addresses where the
	// others count users. Empty: what WithKey says.
	Key []KeyFunc

	// Prefix is how the policy's keys begin, without its name: such as that of
	// keys which other services use too. Empty: what WithPrefix says, followed by
	// the name where several policies begin so. No policy's prefix may be, or
	// continue, another one's; with WithHashTag it may continue it.
	Prefix string

	// Window is the span that the limit speaks of, for the "w" of
	// RateLimit-Policy, in whole seconds rounded up; below a second it is left
	// out. 0: what the Limiter says, if it is a limit.Windowed. That is what it
	// was made with: one of Client.Keyed does not look at what the rate of a key
	// was changed to since.
	Window time.Duration

	// Fallback answers while Limiter fails, in the place of what WithFailure
	// says. nil: WithFailure holds for this policy too. If it is a
	// limit.Windowed, its window is told with its answers.
	Fallback limit.Limiter
}

// policy is a Policy that was found to be sound.
type policy struct {
	name     string
	limiter  limit.Limiter
	window   time.Duration
	windowed limit.Windowed // nil if the limiter is not, or the window is given
	fallback limit.Limiter
	keys     []KeyFunc // empty: those that all share
	prefix   string    // how its keys begin
	text     atomic.Pointer[policyText]
}

func newPolicy(p Policy) (*policy, error) {
	switch {
	case !printable(p.Name):
		return nil, fmt.Errorf("%w: the policy name %q is empty or not printable ASCII", limit.ErrInvalidConfig, p.Name)
	case p.Limiter == nil:
		return nil, fmt.Errorf("%w: policy %q: the limiter is nil", limit.ErrInvalidConfig, p.Name)
	case p.Window < 0:
		return nil, fmt.Errorf("%w: policy %q: the window is %v", limit.ErrInvalidConfig, p.Name, p.Window)
	}
	if anyNil(p.Key) {
		return nil, fmt.Errorf("%w: policy %q: a key function is nil", limit.ErrInvalidConfig, p.Name)
	}
	made := &policy{
		name: p.Name, limiter: p.Limiter, window: p.Window, fallback: p.Fallback, keys: slices.Clone(p.Key), prefix: p.Prefix,
	}
	if p.Window == 0 {
		made.windowed, _ = p.Limiter.(limit.Windowed)
	}
	return made, nil
}

func printable(name string) bool {
	return name != "" && strings.IndexFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}

// span returns the policy's window, 0 where it is not known.
func (p *policy) span() time.Duration {
	if p.windowed != nil {
		return p.windowed.Window()
	}
	return p.window
}

func (p *policy) failure(common Failure) Failure {
	if p.fallback != nil {
		return Failure{fallback: p.fallback}
	}
	return common
}
