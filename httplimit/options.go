package httplimit

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/ask"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Option configures what [New] or [NewTransport] returns.
type Option func(*settings) error

// settings collects what the options say.
type settings struct {
	middleware

	name  string
	added []Policy

	// An option that only middleware, or only a transport, can have; "" if none was given.
	serverOnly, clientOnly string
}

// DefaultTimeout is how long the limiters have to decide, unless [WithTimeout]
// says otherwise.
const DefaultTimeout = time.Second

func newMiddleware(limiter limit.Limiter, client bool, opts []Option) *middleware {
	s := settings{name: "default"}
	s.Prefix, s.keys = "http:", []KeyFunc{ClientIP(ClientIPConfig{})}
	if client {
		s.Prefix, s.keys = "upstream:", []KeyFunc{Host()}
	}
	s.Timeout, s.maxPause, s.maxWait = DefaultTimeout, DefaultPause, -1
	s.onError = logError
	faults := ask.Apply(&s, opts)
	switch {
	case client && s.serverOnly != "":
		faults = errors.Join(faults, errors.New(s.serverOnly+": a transport has no handler"))
	case !client && s.clientOnly != "":
		faults = errors.Join(faults, errors.New(s.clientOnly+": only a transport waits"))
	}
	m := &s.middleware
	m.err = ask.Invalid("httplimit", faults, m.setPolicies(append([]Policy{{Name: s.name, Limiter: limiter}}, s.added...)))
	return m
}

func logError(r *http.Request, err error) {
	slog.ErrorContext(r.Context(), "rate limit not decided", "error", err)
}

// WithPrefix sets how each key begins, by default "http:". It must not be empty,
// so that nobody outside chooses the whole of a key. Middlewares with the same
// prefix and the same key functions share their keys, and so their limits where
// these are the same. Limits that differ need prefixes, or keys, of their own: 3
// an hour and 50 a second at the same key spoil each other. Nor should a prefix
// continue another one's, as "api:ip:" does "api:": who is called "ip" by the one
// would reach keys of the other. Of one middleware's policies that is refused.
func WithPrefix(prefix string) Option {
	return func(s *settings) error { return s.SetPrefix(prefix) }
}

// WithKey sets what requests are counted by: those for which all parts are the
// same share a limit. The default is ClientIP(ClientIPConfig{}).
//
// A key is the prefix and the parts with ":" between. Within a part, ':', '{',
// '}', '%', spaces and what is not printable or no UTF-8 are written %XX; a part
// that has more than 128 bytes then becomes its beginning and its SHA-256. So
// different parts make different keys, and nobody outside chooses a key's slot
// in a cluster. Where a limiter is a limit.Suffixed, as those of package
// tokenbucket are, a key that ends in the suffix gets a '%' behind it: the user
// "ann_time" does not reach the second key of the user "ann".
//
// An empty part, such as that of a missing header, stays empty: the requests
// that lack it share one limit.
//
// With several policies the policy's name comes between prefix and parts, but for
// those that have a Policy.Prefix of their own.
func WithKey(parts ...KeyFunc) Option {
	return func(s *settings) error { return ask.SetKey(&s.keys, parts) }
}

// WithHashTag makes the parts of a key its hash tag, "http:{192.0.2.1}" for
// example. On a cluster, limiters that keep several Redis keys for each of theirs
// need it, as those of package tokenbucket do. The prefix then must hold no
// braces.
func WithHashTag() Option {
	return (*settings).SetTagged
}

// WithCost sets how many permits a request takes, by default 1. At 0 or less it
// passes without a limiter being asked: mind what comes from the client, such as a
// ContentLength of -1. A request that costs more than can be granted at once is
// refused without Retry-After.
func WithCost(cost func(*http.Request) int64) Option {
	return func(s *settings) error { return ask.SetFunc(&s.cost, cost, "WithCost: the function") }
}

// WithSettle makes what [WithCost] says an estimate, which the handler sets right by [Settle].
// Each policy whose limiter is a [limit.Reserver], as those of Client.Keyed are, reserves its
// permits: that is a script call of its own, which no other request shares. Other limiters decide
// as without the option.
//
// The handler gets a copy of the request with another context.
func WithSettle() Option {
	return func(s *settings) error {
		s.serverOnly = "WithSettle"
		return s.SetSettled()
	}
}

// WithSkip lets the requests of which skip says true pass without a limiter being
// asked.
func WithSkip(skip func(*http.Request) bool) Option {
	return func(s *settings) error { return ask.SetFunc(&s.skip, skip, "WithSkip: the function") }
}

// WithName names the policy of New's limiter, by default "default". See
// Policy.Name.
func WithName(name string) Option {
	return func(s *settings) error {
		s.name = name
		return nil
	}
}

// WithPolicy adds a limit that requests must pass too. All policies are asked at
// the same time, and a request is charged to all or to none: where one refuses
// or fails, what the others granted is given back. For that moment others may be
// refused it.
//
// The keys then hold the policies' names, also that of the first: adding the
// second policy starts the first one's counts anew, unless it has a Policy.Prefix.
func WithPolicy(p Policy) Option {
	return func(s *settings) error {
		s.added = append(s.added, p)
		return nil
	}
}

// WithTimeout bounds how long a request waits for the limiters, by default
// [DefaultTimeout]. What takes longer has failed: see [WithFailure]; what it
// grants nevertheless is given back if the limiter is a [limit.Returner]. A
// fallback has that long again, and so has giving back. 0 stands for no bound but
// the request's own context.
func WithTimeout(d time.Duration) Option {
	return func(s *settings) error { return s.SetTimeout(d) }
}

// WithFailure says what answers a request while a limiter does not decide:
// [limit.FailClosed] has it answered 503, with Retry-After; [limit.FailOpen] lets it
// pass as far as that limiter is concerned, whose policy is left out of the headers;
// [limit.FailLocal] has this process decide, by a share of the limit.
//
// A limiter does not decide where it returns limit.ErrUnavailable, takes longer than
// [WithTimeout] allows, or returns an error that is none of package limit's. All other
// errors are mistakes, and answered as if there were no WithFailure.
//
// After three requests in a row that a limiter left undecided it is asked no more: the
// policy answers at once, while one request at a time looks for the limiter to decide
// again, and waits for that for 5 ms at most. The end of a request's own context counts
// too, if the limiter had 50 ms. Without WithFailure and [WithFallback] each request is
// asked about, and answered 503 where that fails.
//
// FailLocal takes the limit that the limiter told last for a key and, where it has told
// none for that, the last of any key; while it has told none at all, requests are
// answered 503. The window is Policy.Window, or that of a limit.Windowed; there must be
// one.
//
// A limiter with a WithFailure of its own answers by that, and seldom fails here. On a
// cluster prefer it: it knows each master's outage by itself, while here one limiter
// fails as a whole.
func WithFailure(f limit.Failure) Option {
	return func(s *settings) error { return s.SetFailure(f) }
}

// WithFallback has limiter answer, under the same keys, while one does not decide, in
// place of what [WithFailure] says: a [Local] one of the same rate, for example. Where
// it fails too, the answer is 503.
func WithFallback(limiter limit.Limiter) Option {
	return func(s *settings) error { return s.SetFallback(limiter) }
}

// WithShadow has limiters decide and charge, and the handler get each request that the
// options are right for: to see what a limit would do. [WithObserver] receives what
// would have been refused, and [WithErrorHandler] failures. No header says anything
// of limits. What would have been refused is charged no more than without the option.
func WithShadow() Option {
	return (*settings).SetShadow
}

// WithObserver reports each policy's answer to each request to an observer, by
// Decided, and when a limiter is asked no more and again, by Happened. They call the
// policy by its name, and the Call "httplimit". A request that costs more than a limit
// has is one that failed. Observers of the limiters themselves receive it too.
func WithObserver(observer limit.Observer) Option {
	return func(s *settings) error { return s.SetObserver(observer) }
}

// WithErrorHandler sets a hook that is called, before the answer, once for each
// request of which a limiter or a key function failed, or a grant could not be
// given back. A refusal is no error, and neither is a request whose client went
// away. By default errors are logged by slog's default logger.
func WithErrorHandler(hook func(*http.Request, error)) Option {
	return func(s *settings) error { return ask.SetFunc(&s.onError, hook, "WithErrorHandler: the hook") }
}

// WithRefusal sets what writes the answer to a refused request, in the place of
// the problem description. The headers are set when it is called, Retry-After
// too; the status is its to write, normally http.StatusTooManyRequests.
func WithRefusal(refuse func(http.ResponseWriter, *http.Request, Refusal)) Option {
	return func(s *settings) error {
		s.serverOnly = "WithRefusal"
		return ask.SetFunc(&s.refuse, refuse, "WithRefusal: the function")
	}
}

// WithHeaders chooses the headers that tell clients of their limits, by default
// [Draft11].
func WithHeaders(h Headers) Option {
	return func(s *settings) error {
		if h != Draft11 && h != NoHeaders {
			return fmt.Errorf("WithHeaders: there is no choice %d", h)
		}
		s.headers, s.serverOnly = h, "WithHeaders"
		return nil
	}
}

// WithLegacyHeaders adds X-RateLimit-Limit, X-RateLimit-Remaining and
// X-RateLimit-Reset, the last in Unix seconds. They have room for one policy:
// the one whose refusal lasts longest or, where all grant, with the least
// remaining.
func WithLegacyHeaders() Option {
	return func(s *settings) error {
		s.legacy, s.serverOnly = true, "WithLegacyHeaders"
		return nil
	}
}

// DefaultPause is the longest time for which an upstream stops calls, unless [WithPause] says
// otherwise.
const DefaultPause = 5 * time.Minute

// WithPause bounds for how long an upstream that answers 429 or 503 with Retry-After stops the
// calls of a transport, by default [DefaultPause]. Of a longer one that much is heeded. At 0
// no upstream stops calls.
func WithPause(most time.Duration) Option {
	return func(s *settings) error {
		s.maxPause, s.clientOnly = most, "WithPause"
		return checkBound("WithPause", most)
	}
}

// WithWait bounds how long a call of a transport waits before it is sent. By default only the
// request's context does, which has to last for the call too. At 0 no call waits: one that has
// no permits at once fails.
func WithWait(most time.Duration) Option {
	return func(s *settings) error {
		s.maxWait, s.clientOnly = most, "WithWait"
		return checkBound("WithWait", most)
	}
}

func checkBound(option string, most time.Duration) error {
	if most < 0 {
		return fmt.Errorf("%s: %v", option, most)
	}
	return nil
}
