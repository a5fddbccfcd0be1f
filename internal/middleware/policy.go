package middleware

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/keypart"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Policy is one of several limits that requests R must pass.
type Policy[R any] struct {
	Terms

	Plan func(R) limit.Limiter // chooses another limiter; nil: none
	Keys []func(R) (string, error)
	Cost func(R) (int64, error)

	Charge func(r R, status int) int64 // what a request costs once its status is known; nil: what it did before

	limit *Limit // of Limiter
}

// Policies are all limits that requests R must pass.
type Policies[R any] struct {
	Options

	Keys []func(R) (string, error) // of policies that have none
	Cost func(R) (int64, error)    // likewise; nil: 1
	Skip func(R) bool              // which requests pass; nil: none

	Invalid error // what is wrong with the options

	all []*Policy[R]
}

// SetPolicies checks the policies and says how their keys begin.
func (p *Policies[R]) SetPolicies(policies []Policy[R]) error {
	alike := 0 // how many policies have the prefix of WithPrefix
	for _, one := range policies {
		if one.Prefix == "" {
			alike++
		}
	}
	for _, one := range policies {
		if one.Prefix == "" {
			one.Prefix = p.Prefix
			if alike > 1 {
				one.Prefix += keypart.Escape(one.Name) + ":"
			}
		}
		if err := p.add(&one); err != nil {
			return err
		}
	}
	return nil
}

func (p *Policies[R]) add(one *Policy[R]) (err error) {
	switch {
	case one.Limiter == nil:
		return fmt.Errorf("policy %q: the limiter is nil", one.Name)
	case one.Length < 0:
		return fmt.Errorf("policy %q: the window %v is below 0", one.Name, one.Length)
	case AnyNil(one.Keys):
		return fmt.Errorf("policy %q: a key function is nil", one.Name)
	case p.Tagged && strings.ContainsAny(one.Prefix, "{}"):
		return fmt.Errorf("WithHashTag: the prefix %q has braces: choose one without", one.Prefix)
	}
	for _, other := range p.all {
		if other.Name == one.Name {
			return fmt.Errorf("two policies are named %q: give each a name of its own", one.Name)
		}
		if err := p.checkPrefixes(one, other); err != nil {
			return err
		}
	}
	one.Charges = one.Charge != nil
	if one.limit, err = p.Limit(one.Terms); err != nil {
		return fmt.Errorf("policy %q: %w", one.Name, err)
	}
	p.all = append(p.all, one)
	return nil
}

// checkPrefixes returns an error if two policies' keys could be the same: a client called "ip" could make one of
// "api:ip:" with those of "api:". The brace of a hash tag ends a prefix.
func (p *Policies[R]) checkPrefixes(a, b *Policy[R]) error {
	if a.Prefix != b.Prefix && (p.Tagged || !strings.HasPrefix(a.Prefix, b.Prefix) && !strings.HasPrefix(b.Prefix, a.Prefix)) {
		return nil
	}
	return fmt.Errorf("the keys of policy %q begin with %q and those of policy %q with %q, so that a key of one could be another's: "+
		"give them prefixes so that neither begins with the other, by Policy.Prefix or WithPrefix",
		b.Name, b.Prefix, a.Name, a.Prefix)
}

// Settles reports whether handlers settle what a policy charges.
func (p *Policies[R]) Settles() bool {
	return slices.ContainsFunc(p.all, func(one *Policy[R]) bool { return one.Settle })
}

// Charges reports whether the status of requests says what a policy charges, unless handlers settle that.
func (p *Policies[R]) Charges() bool {
	return slices.ContainsFunc(p.all, func(one *Policy[R]) bool { return one.Charges })
}

// Err returns what is wrong with the options, or else with the policies' limiters.
func (p *Policies[R]) Err() error {
	if p.Invalid != nil {
		return p.Invalid
	}
	var faults []error
	for _, one := range p.all {
		faults = append(faults, one.limit.Err())
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("%s: %w", p.Middleware, err)
	}
	return nil
}

// FuncError is the error of one of the application's functions.
type FuncError struct {
	What string // "cost", "key" or "plan"
	Err  error
}

func (e *FuncError) Error() string { return e.What + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *FuncError) Unwrap() error { return e.Err }

// Questions returns a question for each policy that the request costs something. The error is a *FuncError.
func (p *Policies[R]) Questions(r R) ([]Question, error) {
	if p.Skip != nil && p.Skip(r) {
		return nil, nil
	}
	cost, key, text := int64(1), "", ""
	var costKnown, keyKnown bool
	questions := make([]Question, 0, len(p.all))
	for place, one := range p.all {
		n, parts, made, chosen := cost, key, text, one.limit
		var err error
		if of := one.Cost; of != nil {
			n, err = of(r)
		} else if p.Cost != nil && !costKnown {
			cost, err = p.Cost(r)
			n, costKnown = cost, true
		}
		if err != nil {
			return nil, &FuncError{"cost", err}
		}
		if n <= 0 {
			continue
		}
		if len(one.Keys) > 0 {
			parts, made, err = p.parts(r, one.Keys)
		} else if !keyKnown {
			key, text, err = p.parts(r, p.Keys)
			parts, made, keyKnown = key, text, true
		}
		if err != nil {
			return nil, &FuncError{"key", err}
		}
		if one.Plan != nil {
			if chosen, err = one.limit.For(one.Plan(r)); err != nil {
				return nil, &FuncError{"plan", err}
			}
		}
		q := chosen.Question(one.Prefix+parts, made, n)
		q.Place = place
		questions = append(questions, q)
	}
	return questions, nil
}

// parts returns what follows the prefix in a key, and what that was made of, with ':' between.
func (p *Policies[R]) parts(r R, keys []func(R) (string, error)) (parts, made string, err error) {
	first := true
	parts, err = keypart.Join(keys, p.Tagged, func(part func(R) (string, error)) (string, error) {
		text, err := part(r)
		if first {
			made, first = text, false
		} else {
			made += ":" + text
		}
		return text, err
	})
	return parts, made, err
}
