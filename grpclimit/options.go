package grpclimit

import (
	"context"
	"log/slog"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Option configures [Interceptors].
type Option func(*settings) error

// settings collects what the options say.
type settings struct {
	middleware.Policies[request]

	keys       []KeyFunc
	added      []Policy
	onError    func(context.Context, Call, error)
	perMessage bool
	wait       bool
}

// DefaultTimeout is how long the limiter has to decide, unless [WithTimeout] sets another
// bound.
const DefaultTimeout = time.Second

func logError(ctx context.Context, call Call, err error) {
	slog.ErrorContext(ctx, "rate limit not decided", "method", call.Method, "error", err)
}

// WithPrefix sets how each key begins, by default "grpc:". It must not be empty:
// otherwise a client could choose a whole key. Interceptors with the same prefix and
// the same key functions share their keys, and their limits if these are equal too.
// Different limits need different prefixes or keys: 3 an hour and 50 a second at the
// same key spoil each other. A prefix must not begin with another one, as "api:ip:"
// does with "api:": a client called "ip" under "api:" would reach keys of "api:ip:".
func WithPrefix(prefix string) Option {
	return func(s *settings) error { return s.SetPrefix(prefix) }
}

// WithKey sets what calls are counted by. Calls for which all parts are the same share a
// limit. The default is Method and Peer on a server, Method and Target in a client.
//
// A key is the prefix and the parts, joined by ":".
//
// Different parts make different keys, and no client can choose a whole key or its
// slot in a cluster: within a part ':', '{', '}', '%', spaces, unprintable characters
// and invalid UTF-8 are written %XX, and a part longer than 128 bytes becomes its
// beginning and its SHA-256. A key of package tokenbucket that ends in "_time" gets
// a '%' at its end.
//
// An empty part, such as missing metadata, stays empty: the calls without it share
// one limit.
func WithKey(parts ...KeyFunc) Option {
	return func(s *settings) error { return middleware.SetKey(&s.keys, parts) }
}

// WithHashTag makes the parts of a key its hash tag: "grpc:{192.0.2.1}", for
// example. On a cluster, limiters that keep several Redis keys for each key need it,
// such as those of package tokenbucket. The prefix must then have no braces.
func WithHashTag() Option {
	return (*settings).SetTagged
}

// WithCost sets how many permits a call takes of policies without a Policy.Cost, by default 1. If
// it is 0 or less, these policies let it pass unasked. A call that costs more than the limit is
// refused without RetryInfo, unless the cost is an estimate (Policy.Settle). With an error the call
// ends with its status, or else with codes.InvalidArgument, and the limiter is not asked. As the
// client's fault it does not go to [WithErrorHandler], except in shadow.
func WithCost(cost func(context.Context, Call) (int64, error)) Option {
	return func(s *settings) error { return middleware.SetFunc(&s.Cost, failing(cost), "WithCost: the function") }
}

// WithPolicy adds a limit that calls must pass too. All policies are asked at the same time, and a call is
// charged to all or none: if one refuses or fails, the permits that the others granted are given back. Policies
// over Client.Keyed limiters of one Client whose keys share a hash tag ([WithHashTag]) are one script call, which
// charges nothing if one refuses. Those in shadow are asked apart, and so are those with a lease or remembered
// refusals unless they are settled. With several policies all keys contain the policy's name, also that of New's
// limiter, unless it has a Policy.Prefix.
func WithPolicy(p Policy) Option {
	return func(s *settings) error {
		s.added = append(s.added, p)
		return nil
	}
}

// WithSkip lets calls for which skip returns true pass without asking the limiter: health
// checks, for example.
func WithSkip(skip func(context.Context, Call) bool) Option {
	return func(s *settings) error { return middleware.SetFunc(&s.Skip, of(skip), "WithSkip: the function") }
}

// WithTimeout bounds how long a call waits for the limiter, by default [DefaultTimeout]; a shorter
// call timeout of the limiter counts. If the limiter takes longer, it has failed (see [WithFailure]). What
// it grants later is given back if the limiter is a [limit.Returner]. A fallback gets the same time again.
// With 0 only the call's context bounds the wait.
func WithTimeout(d time.Duration) Option {
	return func(s *settings) error { return s.SetTimeout(d) }
}

// WithFailure sets what happens to a call if the limiter does not decide. With
// [limit.FailClosed] it ends with codes.Unavailable. With [limit.FailOpen] it passes. With
// [limit.FailLocal] this process decides, by a share of the limit.
//
// A limiter of this module decides by that policy as by its own WithFailure, which counts before
// this one; docs/outages.md says what an outage is. Any other limiter does not decide if it returns
// limit.ErrUnavailable, takes longer than [WithTimeout], or returns an error that is not one of
// package limit; FailLocal then needs a limit.Windowed, and takes the limit that the limiter reported
// last. Other errors are mistakes, and answered as without WithFailure.
//
// Without WithFailure and [WithFallback] every call asks the limiter, and ends with
// codes.Unavailable if that fails. With one of them, calls are answered at once after three undecided
// calls of limiters in a row; policies that are one script call count as one.
func WithFailure(f limit.Failure) Option {
	return func(s *settings) error { return s.SetFailure(f) }
}

// WithFallback sets a limiter that answers, under the same keys, if the other does not
// decide. It takes the place of [WithFailure]. If it fails too, the call ends with
// codes.Unavailable.
func WithFallback(limiter limit.Limiter) Option {
	return func(s *settings) error { return s.SetFallback(limiter) }
}

// WithShadow lets every call go on without waiting, to see what a limit would do: the
// limiter decides and charges, but refuses nothing. [WithObserver] receives what would
// have been refused, and [WithErrorHandler] receives failures. No trailer mentions limits.
// Calls still fail if the options are wrong.
func WithShadow() Option {
	return (*settings).SetShadow
}

// WithObserver sets an observer that receives the answer to each call and message that
// takes permits (Decided), and each start and end of the breaker (Happened). The limit has
// its own name there (Policy.Name), and the Call is "grpclimit". Observers of the limiter itself receive it too.
func WithObserver(observer limit.Observer) Option {
	return func(s *settings) error { return s.SetObserver(observer) }
}

// WithErrorHandler sets a hook that is called, before the call goes on or ends, each time
// a limiter or a key function failed. Refusals are not errors, nor are a cost that can't be
// found out ([WithCost]) and a call whose context ended. With [WithFailure] or [WithFallback] the
// first calls of an outage are reported, and no later ones. By default slog's default logger logs
// the errors.
//
// It is called too for what Policy.InFlight and Policy.Charge can't renew or settle, by any goroutine and also after the
// call.
func WithErrorHandler(hook func(ctx context.Context, call Call, err error)) Option {
	return func(s *settings) error { return middleware.SetFunc(&s.onError, hook, "WithErrorHandler: the hook") }
}

// WithPerMessage makes streams take permits for each message from the client, besides
// those for the opening. A server takes them as it receives a message, a client before it
// sends one. A refused message ends the stream. For unary calls and streams in which the
// client sends only one message the option makes no difference.
func WithPerMessage() Option {
	return func(s *settings) error {
		s.perMessage = true
		return nil
	}
}

// WithWait makes a client wait instead of being refused: for as long as the limiter said,
// and again, until the call's context ends. A call is refused at once if its deadline comes
// before it could pass, or if waiting does not help. With a KeyedLimiter, calls of this program
// are served in order, and sent as soon as permits are released; with other limiters, or several
// policies, in no order.
// A server's interceptors can't have the option: they report limit.ErrInvalidConfig with each call.
func WithWait() Option {
	return func(s *settings) error {
		s.wait = true
		return nil
	}
}
