package grpclimit

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/ask"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Option configures an interceptor.
type Option func(*settings) error

// settings collects what the options say.
type settings struct {
	ask.Options

	name       string
	keys       []KeyFunc
	cost       func(context.Context, Call) int64
	skip       func(context.Context, Call) bool
	onError    func(context.Context, Call, error)
	perMessage bool
	wait       bool
}

// DefaultTimeout is how long the limiter has to decide, unless [WithTimeout]
// says otherwise.
const DefaultTimeout = time.Second

func newGate(limiter limit.Limiter, client bool, opts []Option) *gate {
	g := &gate{client: client}
	g.name, g.Prefix, g.Timeout, g.onError = "default", "grpc:", DefaultTimeout, logError
	g.keys = []KeyFunc{Method(), Peer()}
	if client {
		g.keys = []KeyFunc{Method(), Target()}
	}
	var faults []error
	faults = append(faults, ask.Apply(&g.settings, opts), g.CheckTag(g.Prefix))
	if limiter == nil {
		faults = append(faults, errors.New("the limiter is nil"))
	} else {
		var err error
		g.limit, err = g.Limit(g.name, limiter, nil, span(limiter))
		faults = append(faults, err)
		g.Begin(limiter, g.Prefix)
	}
	if g.wait && !client {
		faults = append(faults, errors.New("WithWait: servers refuse, only clients wait"))
	}
	if g.Settled && client {
		faults = append(faults, errors.New("WithSettle: only handlers settle"))
	}
	g.invalid = ask.Invalid("grpclimit", faults...)
	return g
}

// span returns what tells the span that the limit speaks of, nil where nothing does.
func span(limiter limit.Limiter) func() time.Duration {
	if w, ok := limiter.(limit.Windowed); ok {
		return w.Window
	}
	return nil
}

func logError(ctx context.Context, call Call, err error) {
	slog.ErrorContext(ctx, "rate limit not decided", "method", call.Method, "error", err)
}

// WithPrefix sets how each key begins, by default "grpc:". It must not be empty,
// so that nobody outside chooses the whole of a key. Interceptors with the same
// prefix and the same key functions share their keys, and so their limits where
// these are the same. Limits that differ need prefixes, or keys, of their own: 3
// an hour and 50 a second at the same key spoil each other. Nor should a prefix
// continue another one's, as "api:ip:" does "api:": who is called "ip" by the one
// would reach keys of the other.
func WithPrefix(prefix string) Option {
	return func(s *settings) error { return s.SetPrefix(prefix) }
}

// WithKey sets what calls are counted by: those for which all parts are the same
// share a limit. The default is Method and Peer on a server, Method and Target in
// a client.
//
// A key is the prefix and the parts with ":" between. Within a part, ':', '{',
// '}', '%', spaces and what is not printable or no UTF-8 are written %XX; a part
// that has more than 128 bytes then becomes its beginning and its SHA-256. So
// different parts make different keys, and nobody outside chooses a key's slot
// in a cluster. Where a limiter is a limit.Suffixed, as those of package
// tokenbucket are, a key that ends in the suffix gets a '%' behind it: the user
// "ann_time" does not reach the second key of the user "ann".
//
// An empty part, such as that of missing metadata, stays empty: the calls that
// lack it share one limit.
func WithKey(parts ...KeyFunc) Option {
	return func(s *settings) error { return ask.SetKey(&s.keys, parts) }
}

// WithHashTag makes the parts of a key its hash tag, "grpc:{192.0.2.1}" for
// example. On a cluster, limiters that keep several Redis keys for each of theirs
// need it, as those of package tokenbucket do. The prefix then must hold no
// braces.
func WithHashTag() Option {
	return (*settings).SetTagged
}

// WithCost sets how many permits a call takes, by default 1. At 0 or less it
// passes without the limiter being asked. A call that costs more than the limit
// is refused without RetryInfo.
func WithCost(cost func(context.Context, Call) int64) Option {
	return func(s *settings) error { return ask.SetFunc(&s.cost, cost, "WithCost: the function") }
}

// WithSettle makes what [WithCost] says an estimate, which the handler of a server sets right by
// [Settle]. A limiter that is a [limit.Reserver], as those of Client.Keyed are, reserves its
// permits: that is a script call of its own, which no other call shares. Other limiters decide
// as without the option.
func WithSettle() Option {
	return (*settings).SetSettled
}

// WithSkip lets the calls of which skip says true pass without the limiter being
// asked: health checks, for one.
func WithSkip(skip func(context.Context, Call) bool) Option {
	return func(s *settings) error { return ask.SetFunc(&s.skip, skip, "WithSkip: the function") }
}

// WithTimeout bounds how long a call waits for the limiter, by default
// [DefaultTimeout]. What takes longer has failed: see [WithFailure]; what it
// grants nevertheless is given back if the limiter is a [limit.Returner]. A
// fallback has that long again. 0 stands for no bound but the call's own context.
func WithTimeout(d time.Duration) Option {
	return func(s *settings) error { return s.SetTimeout(d) }
}

// WithFailure says what answers a call while the limiter does not decide:
// [limit.FailClosed] ends it with codes.Unavailable; [limit.FailOpen] lets it pass;
// [limit.FailLocal] has this process decide, by a share of the limit.
//
// The limiter does not decide where it returns limit.ErrUnavailable, takes longer than
// [WithTimeout] allows, or returns an error that is none of package limit's. All other
// errors are mistakes, and answered as if there were no WithFailure.
//
// After three calls in a row that the limiter left undecided it is asked no more: the
// policy answers at once, while one call at a time looks for the limiter to decide
// again, and waits for that for 5 ms at most. The end of a call's own context counts
// too, if the limiter had 50 ms: callers choose their deadlines. Without WithFailure and
// [WithFallback] each call is asked about, and ends with codes.Unavailable where that
// fails.
//
// FailLocal takes the limit that the limiter told last for a key and, where it has told
// none for that, the last of any key; while it has told none at all, calls end with
// codes.Unavailable. The limiter must be a limit.Windowed, and the window is that.
//
// A limiter with a WithFailure of its own answers by that, and seldom fails here. On a
// cluster prefer it: it knows each master's outage by itself, while here the limiter
// fails as a whole.
func WithFailure(f limit.Failure) Option {
	return func(s *settings) error { return s.SetFailure(f) }
}

// WithFallback has limiter answer, under the same keys, while the other does not decide,
// in place of what [WithFailure] says. Where it fails too, the call ends with
// codes.Unavailable.
func WithFallback(limiter limit.Limiter) Option {
	return func(s *settings) error { return s.SetFallback(limiter) }
}

// WithShadow has the limiter decide and charge, and each call that the options are right
// for go on, without waiting: to see what a limit would do. [WithObserver] receives
// what would have been refused, and [WithErrorHandler] failures. No trailer says
// anything of limits.
func WithShadow() Option {
	return (*settings).SetShadow
}

// WithName names the limit, by default "default": for observers, and in the ErrorInfo of
// refusals.
func WithName(name string) Option {
	return func(s *settings) error {
		if name == "" {
			return errors.New("WithName: the name is empty")
		}
		s.name = name
		return nil
	}
}

// WithObserver has an observer told of each call and message that takes permits, by
// Decided, and when the limiter is asked no more and again, by Happened. They call the
// limit by its name ([WithName]), and the Call "grpclimit". A call that costs more than
// the limit is one that failed. Observers of the limiter itself receive it too.
func WithObserver(observer limit.Observer) Option {
	return func(s *settings) error { return s.SetObserver(observer) }
}

// WithErrorHandler sets a hook that is called, before the call goes on or ends,
// each time that a limiter or a key function failed. A refusal is no error, and
// neither is a call whose context ended. By default errors are logged by slog's
// default logger.
func WithErrorHandler(hook func(ctx context.Context, call Call, err error)) Option {
	return func(s *settings) error { return ask.SetFunc(&s.onError, hook, "WithErrorHandler: the hook") }
}

// WithPerMessage has streams take permits for each message that the client
// sends, besides those for the opening: a server as it receives them, a client
// before it sends them. A message that is refused ends the stream. Streams in
// which a client sends one message only are as without this option, and so are
// unary calls.
func WithPerMessage() Option {
	return func(s *settings) error {
		s.perMessage = true
		return nil
	}
}

// WithWait has a client wait instead of being refused: for as long as the
// limiter said, and again, until the call's context ends. It is refused at once
// where its deadline comes before it could pass, and where waiting does not help.
// Calls that wait are not served in order.
func WithWait() Option {
	return func(s *settings) error {
		s.wait = true
		return nil
	}
}
