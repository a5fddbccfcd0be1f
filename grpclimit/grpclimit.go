// Package grpclimit limits gRPC calls: unary and stream interceptors, for servers
// and for clients, over any [limit.Limiter].
//
//	perMinute := slidinglog.New(client, slidinglog.Config{Limit: 100, Window: time.Minute})
//	limits := grpclimit.New(perMinute)
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(limits.UnaryServer()), grpc.ChainStreamInterceptor(limits.StreamServer()))
//
// A call takes one permit of its key, which [WithKey] and [WithPrefix] make: by default
// one key for each full method and IP address on a server, or each full method and target
// in a client. A call that gets no permit ends with codes.ResourceExhausted. Its status has
//
//   - a google.rpc.RetryInfo if waiting helps, with the delay after which the same call
//     could pass, at the earliest;
//   - a google.rpc.QuotaFailure with a violation for each policy that refused, whose subject
//     is the parts of the call's key, as [WithKey] writes them, without the prefix;
//   - a google.rpc.ErrorInfo with the domain [ErrorDomain] and the reason
//     [ReasonExceeded] or [ReasonTooCostly]. Its metadata are "limiter" (Policy.Name),
//     "limit", "remaining" and "retryAfter", such as "1.5s", as far as they are known, of the
//     policy that refuses for the longest time.
//
// A server sends the trailers [TrailerLimit] and [TrailerRemaining], whether a call passes
// or is refused: a value for each policy that decided, in a chain those of the innermost first;
// for a stream once, at its end. With a refusal it also sends grpc-retry-pushback-ms, so clients whose
// service config makes them retry come back no sooner, or not at all.
//
// If the limiter does not decide, for example because Redis is down, calls end with
// codes.Unavailable, unless [WithFailure] or [WithFallback] say otherwise. [WithShadow]
// only watches.
//
// Several limits are policies of the same [Interceptors] ([WithPolicy]). In a chain of interceptors, each
// with its own prefix ([WithPrefix]), what an earlier one granted stays taken if a later one refuses.
//
// Bad options do not panic. The interceptors then end each call with codes.Internal, pass
// limit.ErrInvalidConfig to the hook of [WithErrorHandler], and ask no limiter. [Interceptors.Err]
// returns that error when a program starts. A limiter that returns limit.ErrInvalidConfig ends
// calls the same way, whatever WithFailure says: passing the call would hide the mistake.
package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/internal/middleware"
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

	client  bool
	message bool // one of a stream, after its opening
}

// Interceptors limit calls, unary ones and streams together. Make them with [New].
type Interceptors struct{ gate *gate }

// New returns interceptors that let calls go on for which limiter has permits. What concerns only this limit,
// such as its name, is said by a [Policy] in place of the limiter. All interceptors of the same Interceptors
// share one state: while a limiter fails, what one of them learns the others know.
func New(limiter limit.Limiter, opts ...Option) *Interceptors {
	g := &gate{}
	g.Middleware, g.Prefix, g.Timeout = "grpclimit", "grpc:", DefaultTimeout
	g.onError, g.keys = logError, []KeyFunc{Method(), remote}
	faults := middleware.Apply(&g.settings, opts)
	faults = errors.Join(faults, g.setPolicies(append([]Policy{policyOf(limiter)}, g.added...)))
	g.Invalid = middleware.Invalid("grpclimit", faults)
	g.server.invalid, g.client.invalid = g.Invalid, g.Invalid
	if g.wait {
		g.server.invalid = middleware.Invalid("grpclimit", faults, errors.New("WithWait: servers refuse, only clients wait"))
	}
	if g.Settles() {
		g.client.invalid = middleware.Invalid("grpclimit", faults, errors.New("Policy.Settle: only handlers settle, clients have none"))
	}
	return &Interceptors{g}
}

// Err returns the error that every call passes to [WithErrorHandler] because of bad options, and nil if the
// options are right. Call it when the program starts, after the methods that return interceptors: some options
// are right on one side only. It includes the limiters' own errors if they have a method Err() error, as all
// limiters of this module do, but not those of limiters that only a Plan returns. It asks no limiter.
func (i *Interceptors) Err() error {
	for _, s := range []*side{&i.gate.server, &i.gate.client} {
		if s.used.Load() && s.invalid != nil {
			return s.invalid
		}
	}
	return i.gate.Err()
}

// A gate asks for the permits of calls.
type gate struct {
	settings

	server, client side
}

// side is one end of connections.
type side struct {
	used    atomic.Bool // it has an interceptor
	invalid error       // what is wrong with the options there
}

// admit asks for the permits that call costs. It returns the figures of the limiters that decided, and why the call ends:
// nil if it may go on. It then notes what was decided in the record, unless that is nil, and returns what to call with
// the error by which the call ends later; nil if nothing is to be done then.
func (g *gate) admit(ctx context.Context, call Call, record *middleware.Record) (decisions []limit.Decision, end func(error), no *refusal) {
	questions, no := g.decide(ctx, call)
	if no == nil {
		record.Set(questions)
		end = g.begin(ctx, call, questions)
	}
	for _, q := range middleware.Live(questions) {
		if !g.Shadow && q.Decided() && q.Decision.Limit > 0 {
			decisions = append(decisions, q.Decision)
		}
	}
	return decisions, end, no
}

// begin begins a call that may go on: see [middleware.Policies.Begin].
func (g *gate) begin(ctx context.Context, call Call, questions []middleware.Question) func(error) {
	end := g.Begin(ctx, request{ctx, call}, questions, func(err error) { g.onError(ctx, call, err) })
	if end == nil {
		return nil
	}
	return func(err error) {
		st, known := status.FromError(err)
		if !known {
			st = status.FromContextError(err) // as gRPC does
		}
		end(int(st.Code()))
	}
}

// ended calls what admit has returned for the end of a call, if that is not nil.
func ended(end func(error), err error) {
	if end != nil {
		end(err)
	}
}

// errPanic is how a call ends whose handler has returned no error, since it panicked.
var errPanic = status.Error(codes.Internal, "the handler panicked")

// decide is admit that returns the questions with their answers, none if nothing is asked.
func (g *gate) decide(ctx context.Context, call Call) ([]middleware.Question, *refusal) {
	at := &g.server
	if call.client {
		at = &g.client
	}
	if at.invalid != nil {
		g.onError(ctx, call, at.invalid)
		return nil, &refusal{status: misconfigured}
	}
	questions, err := g.Questions(request{ctx, call})
	if err != nil {
		return nil, g.failed(ctx, call, err)
	}
	if call.message {
		questions = slices.DeleteFunc(questions, func(q middleware.Question) bool { return q.Limit.InFlight || q.Limit.Charges })
	}
	if len(questions) == 0 {
		return nil, nil
	}
	v := g.askOn(ctx, call, questions)
	v.Report(ctx, questions)
	if g.Shadow {
		return questions, nil
	}
	return questions, g.verdict(ctx, v, questions)
}

// askOn asks until there is an answer to act on: a client that waits asks again.
func (g *gate) askOn(ctx context.Context, call Call, questions []middleware.Question) middleware.Verdict {
	if !g.wait || g.Shadow {
		v := g.AskAll(ctx, questions)
		g.tell(ctx, call, v)
		return v
	}
	turn := g.Turn(questions)
	defer turn.Leave()
	ask := turn.Ask
	if len(questions) == 1 && questions[0].Limit.WaitsItself() {
		ask = turn.AskAndWait
	}
	for {
		v := ask(ctx)
		wait := middleware.RetryAfter(middleware.Live(questions))
		over := !v.Refused || wait <= 0 || turn.Sleep(ctx, wait) != nil
		if over && v.Refused {
			v.Kept = errors.Join(v.Kept, g.GiveBack(ctx, questions))
		}
		g.tell(ctx, call, v)
		if over {
			return v
		}
	}
}

// tell tells the error handler what failed.
func (g *gate) tell(ctx context.Context, call Call, v middleware.Verdict) {
	if failure := errors.Join(v.News, v.Kept); failure != nil && ctx.Err() == nil { // otherwise no limiter is to blame
		g.onError(ctx, call, failure)
	}
}

// verdict returns how a call ends, nil if it may go on.
func (g *gate) verdict(ctx context.Context, v middleware.Verdict, questions []middleware.Question) *refusal {
	all := questions
	questions = middleware.Live(all)
	undecided := func(q middleware.Question) bool { return q.State != middleware.Granted }
	costly := slices.IndexFunc(questions, func(q middleware.Question) bool { return q.State == middleware.TooCostly })
	switch {
	case !v.Gone && !slices.ContainsFunc(questions, undecided):
		return nil
	case costly >= 0:
		return tooCostly(&questions[costly])
	case ctx.Err() != nil:
		_ = g.GiveBack(ctx, all) // the call is over: what fails only leaves the limits tighter
		return &refusal{status: status.FromContextError(ctx.Err())}
	case v.Refused:
		return exhausted(questions)
	case !v.Closed:
		return nil
	case errors.Is(v.Failure, limit.ErrInvalidConfig):
		return &refusal{status: misconfigured}
	default:
		return &refusal{status: unavailable}
	}
}

// failed ends a call of which one of the application's functions could not say what it costs or what it is
// counted by: with the status of the error, if it has one. WithFailure is about limiters: a client that can
// make a function fail must not pass.
func (g *gate) failed(ctx context.Context, call Call, err error) *refusal {
	as, cause := unavailable, err
	if of, ok := errors.AsType[*middleware.FuncError](err); ok {
		cause = of.Err
		if of.What == "cost" {
			as = badCost
		}
	}
	if own, ok := status.FromError(cause); ok {
		as = own
	} else if ctx.Err() != nil {
		as = status.FromContextError(ctx.Err())
	} else {
		if errors.Is(err, limit.ErrInvalidConfig) {
			as = misconfigured
		}
		if g.Shadow || as != badCost { // otherwise it is the client's fault
			g.onError(ctx, call, fmt.Errorf("grpclimit: %w", err))
		}
	}
	if g.Shadow {
		return nil
	}
	return &refusal{status: as}
}
