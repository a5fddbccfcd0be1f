// Package grpclimit limits gRPC calls: unary and stream interceptors, for servers
// and for clients, over any [limit.Limiter].
//
//	perMinute := slidinglog.New(rdb, slidinglog.Config{Limit: 100, Window: time.Minute})
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(grpclimit.UnaryServerInterceptor(perMinute)),
//		grpc.ChainStreamInterceptor(grpclimit.StreamServerInterceptor(perMinute)))
//
// A call takes one permit of its key, which [WithKey] and [WithPrefix] make: by default
// one key for each full method and IP address on a server, or each full method and target
// in a client. A call that gets no permit ends with codes.ResourceExhausted. Its status has
//
//   - a google.rpc.RetryInfo if waiting helps, with the delay after which the same call
//     could pass, at the earliest;
//   - a google.rpc.QuotaFailure, whose subject is the parts of the call's key, as
//     [WithKey] writes them, without the prefix;
//   - a google.rpc.ErrorInfo with the domain [ErrorDomain] and the reason
//     [ReasonExceeded] or [ReasonTooCostly]. Its metadata are "limiter" ([WithName]),
//     "limit", "remaining" and "retryAfter", such as "1.5s", as far as they are known.
//
// A server sends the trailers [TrailerLimit] and [TrailerRemaining], whether a call passes
// or is refused: in a chain one value for each interceptor, the innermost first; for a stream
// once, at its end. With a refusal it also sends grpc-retry-pushback-ms, so clients whose
// service config makes them retry come back no sooner, or not at all.
//
// If the limiter does not decide, for example because Redis is down, calls end with
// codes.Unavailable, unless [WithFailure] or [WithFallback] say otherwise. [WithShadow]
// only watches.
//
// For several limits use several interceptors in a chain, each with its own prefix
// ([WithPrefix]). If a later one refuses, what an earlier one granted stays taken, so the one
// that refuses most should be the first.
//
// Bad options do not panic. The interceptor then ends each call with codes.Internal, passes
// limit.ErrInvalidConfig to the hook of [WithErrorHandler], and asks no limiter. A limiter that
// returns limit.ErrInvalidConfig ends calls the same way, whatever WithFailure says: passing the
// call would hide the mistake.
package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/internal/ask"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Call describes a call when its permits are asked for. Metadata, peer and deadline are in
// the context beside it.
type Call struct {
	// Method is the full method, such as "/grpc.health.v1.Health/Check".
	Method string

	// Target is the target that the client's connection was made for, such as
	// "dns:///orders:443". Empty on a server.
	Target string

	// Message is the request. Of a stream it is the message that was received or will be
	// sent; nil at the opening.
	Message any

	client bool
}

// A gate asks for the permits of calls.
type gate struct {
	settings
	limit   *ask.Limit
	client  bool
	invalid error // what is wrong with the options
}

// admit asks for the permits that call costs. It returns the figures of the limiter that
// decided, and how the call ends: nil if it may go on. Its charge can be settled through s,
// unless s is nil.
func (g *gate) admit(ctx context.Context, call Call, s *ask.Settlement) (limit.Decision, *refusal) {
	s.Charge()
	call.client = g.client
	if g.invalid != nil {
		g.onError(ctx, call, g.invalid)
		return limit.Decision{}, &refusal{status: misconfigured}
	}
	if g.skip != nil && g.skip(ctx, call) {
		return limit.Decision{}, nil
	}
	n := int64(1)
	var err error
	if g.cost != nil {
		n, err = g.cost(ctx, call)
	}
	if err != nil {
		return limit.Decision{}, g.failed(ctx, call, "cost", err, badCost)
	}
	if n <= 0 {
		return limit.Decision{}, nil
	}
	parts, err := g.parts(ctx, call)
	if err != nil {
		return limit.Decision{}, g.failed(ctx, call, "key", err, unavailable)
	}
	chosen := g.limit
	if g.plan != nil {
		if chosen, err = g.limit.For(g.plan(ctx, call)); err != nil {
			return limit.Decision{}, g.failed(ctx, call, "plan", err, unavailable)
		}
	}
	q := g.askOn(ctx, call, chosen.Question(g.Prefix+parts, n))
	q.Report(ctx, "grpclimit")
	s.Charge(&q)
	if g.Shadow {
		return limit.Decision{}, nil
	}
	no := g.verdict(ctx, &q, parts, n)
	if q.State == ask.TooCostly {
		return limit.Decision{}, no // what remains is not known
	}
	return q.Decision, no
}

// askOn asks until there is an answer to act on: a client that waits asks again.
func (g *gate) askOn(ctx context.Context, call Call, first ask.Question) ask.Question {
	for {
		q := g.ask(ctx, call, first)
		waits := g.wait && !g.Shadow && q.State == ask.Refused && !ask.Never(q.Decision)
		if !waits || !pause(ctx, q.Decision.RetryAfter) {
			return q
		}
	}
}

// verdict returns how a call ends, nil if it may go on.
func (g *gate) verdict(ctx context.Context, q *ask.Question, subject string, n int64) *refusal {
	switch {
	case q.State == ask.Granted:
		return nil
	case q.State == ask.TooCostly:
		return g.tooCostly(subject, q.Decision, n)
	case ctx.Err() != nil:
		return &refusal{status: status.FromContextError(ctx.Err())}
	case q.State == ask.Refused:
		return g.exhausted(subject, q.Decision)
	case q.State == ask.Open:
		return nil
	case errors.Is(q.Failure, limit.ErrInvalidConfig):
		return &refusal{status: misconfigured}
	default:
		return &refusal{status: unavailable}
	}
}

// ask asks the limiter.
func (g *gate) ask(ctx context.Context, call Call, q ask.Question) ask.Question {
	q.Ask(ctx)
	if q.News() != nil && ctx.Err() == nil { // otherwise no limiter is to blame
		g.onError(ctx, call, fmt.Errorf("grpclimit: %w", q.Failure))
	}
	return q
}

// failed ends a call whose key or cost, what, is not known: with that status, unless the error has one itself.
// WithFailure is about limiters: a client that can make a function fail must not pass.
func (g *gate) failed(ctx context.Context, call Call, what string, err error, as *status.Status) *refusal {
	if own, ok := status.FromError(err); ok {
		as = own
	} else if ctx.Err() != nil {
		as = status.FromContextError(ctx.Err())
	} else {
		g.onError(ctx, call, fmt.Errorf("grpclimit: %s: %w", what, err))
		if errors.Is(err, limit.ErrInvalidConfig) {
			as = misconfigured
		}
	}
	if g.Shadow {
		return nil
	}
	return &refusal{status: as}
}

// pause waits for d. It returns false if ctx ends before, at once if it knows so in
// advance, or if waiting does not help.
func pause(ctx context.Context, d time.Duration) bool {
	if end, ok := ctx.Deadline(); d <= 0 || (ok && time.Until(end) <= d) {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
