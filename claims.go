package rratelimiter

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// MaxLimiters is how many claims one call takes at most.
const MaxLimiters = 32

// Claim is a number of permits of one limiter, for calls that take from several: see [Client.TakeAll].
type Claim struct {
	limiter *RateLimiter
	permits int64
	of      reserveOptions
	undo    bool // for middleware: it is not settled, but may go back
}

// Claim returns a claim to so many permits, from 1 to MaxPermits. [Hold] is for [Client.ReserveAll], and each claim
// has its own; other calls return ErrInvalidConfig. Claim does no I/O.
func (l *RateLimiter) Claim(permits int64, opts ...ReserveOption) Claim {
	return Claim{limiter: l, permits: permits, of: chosen(opts)}
}

// Claim is [RateLimiter.Claim] of the key's limiter. Limiters of several Keyed go together if the key has
// braces, as "{ann}": they are the hash tag that their names share.
func (k *KeyedLimiter) Claim(key string, permits int64, opts ...ReserveOption) Claim {
	return k.Limiter(key).Claim(permits, opts...)
}

// TakeAll takes the permits of every claim at once, or none: for example 1 of the requests a minute and 800 of the
// tokens a day. One script decides. The Decisions are in the order of the claims. If all are Granted, the permits
// are taken. Otherwise those that are not Granted refused, each with its RetryAfter, and no limiter was charged.
//
// The limiters must be handles of this Client, up to MaxLimiters, each once. Their names must share a hash
// tag, as in "{shop}:second" and "{shop}:hour", so that a cluster keeps them on one server. Otherwise TakeAll
// returns ErrUnsupported, even without a cluster, and so it does beside Redissons before 3.13.3. The
// Client's [WithFailure] and [WithShadow] count, not those of the handles. Otherwise it behaves like
// [RateLimiter.Take]. An error names the limiter that caused it, and nothing is taken.
func (c *Client) TakeAll(ctx context.Context, claims ...Claim) ([]limit.Decision, error) {
	a, err := c.decideAll(ctx, claims, decide.Ask{Call: "TakeAll", Figures: true})
	if err != nil {
		return nil, err
	}
	return decisions(claims, a), nil
}

// TryAcquireAll takes the permits of every claim or none, as [Client.TakeAll] does, and reports whether it
// did. With a timeout of 0 or less it asks once. Otherwise it waits as [RateLimiter.TryAcquire] does: with one claim in
// the limiter's line, with several in a line of such callers beside it, which the limiter that refuses longest has.
func (c *Client) TryAcquireAll(ctx context.Context, timeout time.Duration, claims ...Claim) (bool, error) {
	a, err := c.decideAll(ctx, claims, decide.Ask{Call: "TryAcquireAll", MayWait: timeout > 0, Timeout: timeout})
	return a.Granted, err
}

// ReserveAll is [RateLimiter.Reserve] for several limiters: it takes the permits of every claim or none, and
// waits as [Client.TryAcquireAll] does. [Reservations.Settle] then takes a number for each claim. A claim with a
// [Hold] that is not settled comes back after that time, the others after an interval.
func (c *Client) ReserveAll(ctx context.Context, timeout time.Duration, claims ...Claim) (*Reservations, error) {
	q := decide.Ask{Call: "ReserveAll", MayWait: timeout > 0, Timeout: timeout, Figures: true, Reserve: true}
	a, err := c.decideAll(ctx, claims, q)
	if err != nil {
		return nil, err
	}
	r := &Reservations{Granted: a.Granted, RetryAfter: a.RetryAfter, Decisions: decisions(claims, a)}
	r.of.Init(c.policy.Observer, (&jointAsker{c, claims}).Limiters(q), q, a)
	return r, nil
}

// decideAll asks for permits of several limiters. A single one is asked as by itself.
func (c *Client) decideAll(ctx context.Context, claims []Claim, q decide.Ask) (decide.Answer, error) {
	joint := &jointAsker{c, claims}
	if len(claims) == 1 {
		if _, _, err := joint.FromMemory(ctx, q); err == nil {
			q.Permits, q.Hold = claims[0].permits, claims[0].of.hold
			a, err := c.policy.Decide(ctx, (*asker)(claims[0].limiter), q)
			a.Each = []decide.Answer{a}
			return a, err
		}
	}
	return c.policy.Decide(ctx, joint, q)
}

// decisions returns a Decision for each claim: zero ones if the caller's time was over before its turn.
func decisions(claims []Claim, a decide.Answer) []limit.Decision {
	all := make([]limit.Decision, len(claims))
	for i, one := range a.Each {
		all[i] = one.Decision
	}
	return all
}

// checkAll returns an error if claims can't go together in one decision, or can't have what only a reservation has.
func (c *Client) checkAll(claims []Claim, reserve bool) error {
	if c.err != nil {
		return c.err
	}
	if len(claims) == 0 || len(claims) > MaxLimiters {
		return fmt.Errorf("%w: %d limiters are given, not between 1 and %d", ErrInvalidConfig, len(claims), MaxLimiters)
	}
	owners := make(map[string]*RateLimiter, 5*len(claims))
	for i, claim := range claims {
		l := claim.limiter
		switch {
		case l == nil:
			return fmt.Errorf("%w: limiter %d of %d is nil", ErrInvalidConfig, i+1, len(claims))
		case l.client != c:
			return l.blame(fmt.Errorf("%w: the limiter is a handle of another Client", ErrInvalidConfig))
		case l.facts.Err != nil:
			return l.blame(l.facts.Err)
		case claim.of.err != nil:
			return l.blame(claim.of.err)
		case claim.of.hold > 0 && !reserve:
			return l.blame(invalid(true, "Hold: only ReserveAll holds permits"))
		case claim.permits < 1 || claim.permits > MaxPermits:
			return l.blame(fmt.Errorf("%w: %d is not between 1 and %d", ErrInvalidPermits, claim.permits, int64(MaxPermits)))
		}
		for _, key := range l.facts.Keys().Names() {
			other := owners[key]
			switch {
			case other == nil:
				owners[key] = l
			case other.facts.Config == l.facts.Config:
				return l.blame(fmt.Errorf("%w: the limiter is given twice; claim the sum of the permits", ErrInvalidConfig))
			case other != l:
				return l.blame(fmt.Errorf("%w: %q is a key of the limiter %q too", ErrInvalidConfig, key, other.facts.Name))
			}
		}
	}
	return checkTags(claims)
}

// checkTags returns an error if a cluster could keep the limiters of claims apart. Of a single one the server reports it.
func checkTags(claims []Claim) error {
	first := claims[0].limiter
	isApart := func(key string) bool { return script.HashTag(key) != script.HashTag(first.facts.Config) }
	for _, claim := range claims {
		l := claim.limiter
		if len(claims) == 1 || !slices.ContainsFunc(l.facts.Keys().Names(), isApart) {
			continue
		}
		what := fmt.Sprintf("%q and %q have no hash tag in common, so that a cluster would keep them apart", first.facts.Config, l.facts.Config)
		advice := `begin the names of all with the same word in braces, as in "{shop}:second" and "{shop}:hour"`
		switch {
		case l.ofKey:
			advice = `give Keyed the key in braces, as in Claim("{ann}", 1)`
		case l == first:
			what = fmt.Sprintf("the keys %q fall in different slots of a cluster", l.facts.Keys().Names())
			advice = `name the limiter with one hash tag, as in "{shop}:hour"`
		}
		return l.blame(fmt.Errorf("%w: %s: %s", ErrUnsupported, what, advice))
	}
	return nil
}

// blame adds to an error of several limiters which one caused it.
func (l *RateLimiter) blame(err error) error { return l.fail("", err) }
