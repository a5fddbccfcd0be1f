// Package keyed serves the limiters that are kept by key, such as fixed windows: it gathers the requests
// for each key, makes calls of them and passes the answers on.
package keyed

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Rule describes how one kind of limiter decides.
type Rule struct {
	Package string // its name in errors, and for observers if no option says another
	Err     error  // in the configuration; nothing is asked then
	Most    int64  // permits that one call may decide about
	Limit   int64  // the most permits that there can ever be at once, 0 if only Redis knows it
	Repeat  bool   // its calls can be repeated
	Write   string // the command by which decisions write, SET or ZADD; "": SET

	// Local returns the rule by which a local limiter decides about a key. With 0 permits it is not known,
	// unless Redis has said what the key's limit is.
	Local func() local.Rule

	// Check returns an error for a key that the limiter can't use, since it would reach what the
	// limiter keeps beside its keys. nil: all keys can be used.
	Check func(key string) error

	Second string                               // what makes a key its second one, at its end; "": there is none
	Ask    func(key string, b *lane.Batch) *Try // returns the call that decides a batch for a key
}

// Try is a script call, with a function that reads its answer.
type Try struct {
	script.Call

	Read func(reply any, err error) (lane.Outcome, error)
	Next *Try // set by Read if the answer does not decide the batch
}

// Queues are the queues of a limiter of keys, one for each key.
type Queues struct {
	Lanes *lane.Lanes // the Client's

	rule   Rule
	name   string // for observers
	policy *outage.Policy
	rates  *outage.Rates // of keys that have their own

	gathering lane.Shards[*batch] // by key
}

// Err returns the error that every call returns because of the configuration.
func (g *Queues) Err() error {
	if g.rule.Err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", g.rule.Package, g.rule.Err)
}

// New returns the Queues of a rule for limiters of a Client, with options as a RateLimiter of it has them.
func New(client *rratelimiter.Client, rule Rule, opts []rratelimiter.LimiterOption) *Queues {
	var missing error
	if client == nil {
		client, missing = rratelimiter.New(nil), fmt.Errorf("%w: New: the Client is nil", limit.ErrInvalidConfig)
	}
	limiterOf, _ := door.Behind[func(string, []rratelimiter.LimiterOption) engine.Behind](client)
	b := limiterOf(rule.Package, opts)
	l := b.Limiter
	rule.Err = errors.Join(rule.Err, cmp.Or(missing, l.Err))
	if l.Fallback != "" || l.Lease != nil || l.Refusals != nil {
		rule.Err = errors.Join(rule.Err, fmt.Errorf("%w: WithDefault, WithLease and WithRefusalCache are for RateLimiters", limit.ErrInvalidConfig))
	}
	return &Queues{Lanes: b.Engine.Lanes(), rule: rule, name: l.Observed, policy: b.Policy, rates: outage.NewRates()}
}

// Run makes a call for a caller, unless the configuration is bad or the Client closed.
func (g *Queues) Run(ctx context.Context, c *script.Call) (any, error) {
	if g.rule.Err != nil {
		return nil, g.rule.Err
	}
	if err := g.Lanes.Begin(); err != nil {
		return nil, err
	}
	defer g.Lanes.End()
	return g.Lanes.Run(ctx, c)
}

// Fail adds the limiter's package and the call to an error.
func Fail(pkg, op, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s %q: %w", pkg, op, key, err)
}

func exceeds(permits, most int64) error {
	return fmt.Errorf("%w: %d permits of %d; ask for fewer or raise the limit", limit.ErrPermitsExceedRate, permits, most)
}

// Parse reads the answer of the limiters' scripts: limit, free, taken, extra, reset, waits... Each limiter
// reads extra itself.
func Parse(reply any) (o lane.Outcome, extra int64, err error) {
	numbers, err := script.Integers(reply, 5)
	if err != nil {
		return lane.Outcome{}, 0, err
	}
	return lane.Outcome{
		Limit:       numbers[0],
		Free:        numbers[1],
		Taken:       numbers[2],
		Reset:       script.Millis(max(0, numbers[4])),
		RetryAfters: numbers[5:],
	}, numbers[3], nil
}
