package grpclimit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Policy is a limit that a call must pass, and all that concerns only this limit. [New] takes one in place
// of a limiter, and [WithPolicy] adds others.
type Policy struct {
	// Name is the policy's name for observers, in keys and in the ErrorInfo of refusals. No other
	// policy may have it. Empty, for New's policy only: "default".
	Name string

	// Limiter decides. If another policy refuses, what it granted is given back only if
	// it is a limit.Returner. It must not be a Policy.
	limit.Limiter

	// Plan chooses another limiter than Limiter by the call, for example by the user's plan. If it returns
	// nil, Limiter decides: no call is without a limit. The limiters share all else that the policy says.
	// Limiters of Client.Keyed need different prefixes there; fixed windows of all plans may count at the
	// same keys. nil: Limiter decides about all.
	Plan func(context.Context, Call) limit.Limiter

	// Key says what the policy counts calls by. Empty: as WithKey says.
	Key []KeyFunc

	// Prefix is how the policy's keys begin. Empty: as WithPrefix says, followed by the policy's name if
	// several policies have that prefix. No policy's prefix may be equal to another one's, or
	// begin with it. With WithHashTag it may begin with it.
	Prefix string

	// Cost says how many permits a call takes of this policy, in place of WithCost. At 0 or less the
	// policy lets it pass unasked. nil: as WithCost says.
	Cost func(context.Context, Call) (int64, error)

	// Settle makes the cost an estimate that a server's handler corrects with Settle. A Limiter that is a
	// limit.Reserver reserves the permits, such as those of package fixedwindow and of Client.Keyed; the
	// latter takes a script call that it shares with no other call. Other limiters decide as if it were not
	// set, and Err names them. An estimate above the limit takes the whole limit, and Settle charges the
	// rest. Clients have no handler: their interceptors report limit.ErrInvalidConfig with each call.
	Settle bool

	// Charge says what a call costs once its code is known, for example 0 for codes.Unavailable. Until then it costs what
	// Cost says, an estimate as with Settle. A handler that calls Settle wins, unless a policy has Settle.
	// After a panic the code is codes.Internal. Messages of streams (WithPerMessage) take nothing. nil: the cost stays.
	Charge func(ctx context.Context, call Call, code codes.Code) int64

	// InFlight makes the policy limit how many calls and streams are under way at the same time: what one took comes back
	// when it has ended. Until then it is renewed, so the limiter's interval, or Hold, only bounds how long a program
	// that was killed keeps it. Messages of streams (WithPerMessage) take nothing. The Limiter must be a limit.Reserver,
	// but no fixed window; Err names others. docs/at-once.md has more.
	InFlight bool

	// Hold makes what was taken come back after that time if its call is neither settled nor renewed, since its program
	// has died. See rratelimiter.Hold. Only limiters of Client.Keyed have it; Err names others. 0: the limiter's interval.
	Hold time.Duration

	// Shadow makes the policy only watch: it decides, and charges what it grants, but lets each call pass, and no
	// trailer shows it. Observers receive its answers, with Shadow set, to calls that all other policies let pass.
	// A Limiter of this module with WithShadow is such a policy too.
	Shadow bool

	// Fallback answers while Limiter fails, in place of WithFallback and WithFailure. nil:
	// these options hold for this policy too. The limiter's or its Client's own WithFailure
	// comes before all of them.
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

// request is a call, as package middleware has one.
type request struct {
	ctx  context.Context
	call Call
}

// setPolicies checks the policies.
func (s *settings) setPolicies(policies []Policy) error {
	var faults []error
	all := make([]middleware.Policy[request], len(policies))
	keys := slices.Clip(s.keys)
	for i, p := range policies {
		if p.Name == "" {
			return errors.New("WithPolicy: the name is empty")
		}
		keys = append(keys, p.Key...)
		var charge func(request, int) int64
		if p.Charge != nil {
			charge = func(r request, code int) int64 { return p.Charge(r.ctx, r.call, codes.Code(code)) }
		}
		all[i] = middleware.Policy[request]{
			Terms: middleware.Terms{
				Name: p.Name, Limiter: p.Limiter, Prefix: p.Prefix, Fallback: p.Fallback, Settle: p.Settle,
				InFlight: p.InFlight, Hold: p.Hold, Shadow: p.Shadow,
			},
			Plan: of(p.Plan), Keys: functions(p.Key), Cost: failing(p.Cost), Charge: charge,
		}
	}
	for _, key := range keys {
		faults = append(faults, faultOf(key))
	}
	s.Keys = functions(s.keys)
	return errors.Join(s.SetPolicies(all), errors.Join(faults...))
}

// of returns a function of calls as package middleware has it; nil for nil.
func of[T any](f func(context.Context, Call) T) func(request) T {
	if f == nil {
		return nil
	}
	return func(r request) T { return f(r.ctx, r.call) }
}

// failing is of for a function that may fail.
func failing[T any](f func(context.Context, Call) (T, error)) func(request) (T, error) {
	if f == nil {
		return nil
	}
	return func(r request) (T, error) { return f(r.ctx, r.call) }
}

func functions(keys []KeyFunc) (all []func(request) (string, error)) {
	for _, key := range keys {
		all = append(all, failing(key))
	}
	return all
}

// Decided is the decision of one policy.
type Decided struct {
	Name string
	limit.Decision
}

// Decisions returns what the policies of all interceptors around a handler have decided about its call, the outermost
// first, from the handler's context or that of its stream: for example how many tokens remain. In a stream with
// [WithPerMessage] that is what was decided about the last message that passed. Policies that did not decide are left out. With
// [WithShadow] some may not be Granted.
func Decisions(ctx context.Context) (all []Decided) {
	middleware.Decisions(ctx, func(name string, d limit.Decision) { all = append(all, Decided{name, d}) })
	return all
}
