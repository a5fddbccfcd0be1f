package httplimit

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Option configures what [New] or [NewTransport] returns.
type Option func(*settings) error

// settings collects what the options say.
type settings struct {
	gate

	keys  []KeyFunc
	added []Policy

	// An option that only middleware, or only a transport, can have; "" if none was given.
	serverOnly, clientOnly string
}

// DefaultTimeout is how long the limiters may take to decide, unless [WithTimeout] sets
// another bound.
const DefaultTimeout = time.Second

func newGate(limiter limit.Limiter, client bool, opts []Option) *gate {
	s := settings{}
	s.Middleware, s.Prefix, s.keys = "httplimit", "http:", []KeyFunc{ClientIP(ClientIPConfig{})}
	if client {
		s.Prefix, s.keys = "upstream:", []KeyFunc{Host()}
	}
	s.Timeout, s.maxPause, s.maxWait = DefaultTimeout, DefaultPause, -1
	s.onError = logError
	faults := middleware.Apply(&s, opts)
	switch {
	case client && s.serverOnly != "":
		faults = errors.Join(faults, errors.New(s.serverOnly+": a transport has no handler"))
	case !client && s.clientOnly != "":
		faults = errors.Join(faults, errors.New(s.clientOnly+": only a transport waits"))
	}
	m := &s.gate
	m.Keys = functions(s.keys)
	faults = errors.Join(faults, m.setPolicies(append([]Policy{policyOf(limiter)}, s.added...), s.keys))
	if client && m.Settles() {
		faults = errors.Join(faults, errors.New("Policy.Settle: a transport has no handler"))
	}
	m.Invalid = middleware.Invalid("httplimit", faults)
	return m
}

func logError(r *http.Request, err error) {
	slog.ErrorContext(r.Context(), "rate limit not decided", "error", err)
}

// WithPrefix sets how each key begins, by default "http:". It must not be empty:
// otherwise a client could choose a whole key. Middlewares with the same prefix and
// the same key functions share their keys, and their limits if these are equal too.
// Different limits need different prefixes or keys: 3 an hour and 50 a second at the
// same key spoil each other. A prefix must not begin with another one, as "api:ip:"
// does with "api:": a client called "ip" under "api:" would reach keys of "api:ip:".
// Two such policies in one middleware are an error.
func WithPrefix(prefix string) Option {
	return func(s *settings) error { return s.SetPrefix(prefix) }
}

// WithKey sets what requests are counted by. Requests for which all parts are the
// same share a limit. The default is ClientIP(ClientIPConfig{}).
//
// A key is the prefix and the parts, joined by ":". With several policies the policy's
// name comes after the prefix, unless the policy has a Policy.Prefix.
//
// Different parts make different keys, and no client can choose a whole key or its
// slot in a cluster: within a part ':', '{', '}', '%', spaces, unprintable characters
// and invalid UTF-8 are written %XX, and a part longer than 128 bytes becomes its
// beginning and its SHA-256. A key of package tokenbucket that ends in "_time" gets
// a '%' at its end.
//
// An empty part, such as a missing header, stays empty: the requests without it
// share one limit.
func WithKey(parts ...KeyFunc) Option {
	return func(s *settings) error { return middleware.SetKey(&s.keys, parts) }
}

// WithHashTag makes the parts of a key its hash tag: "http:{192.0.2.1}", for
// example. On a cluster, limiters that keep several Redis keys for each key need it,
// such as those of package tokenbucket. The prefix must then have no braces.
func WithHashTag() Option {
	return (*settings).SetTagged
}

// WithCost sets how many permits a request takes of policies without a Policy.Cost, by default 1. If it is
// 0 or less, these policies let it pass unasked. Check values that come from the client, such as a
// ContentLength of -1. A request that costs more than the limit is refused without Retry-After, unless
// the cost is an estimate (Policy.Settle).
//
// With an error, for example because the body can't be read, the answer is 400, or 413 for an
// [http.MaxBytesError], and no limiter is asked. As the client's fault it does not go to
// [WithErrorHandler], except in shadow.
func WithCost(cost func(*http.Request) (int64, error)) Option {
	return func(s *settings) error { return middleware.SetFunc(&s.Cost, cost, "WithCost: the function") }
}

// WithSkip lets requests for which skip returns true pass without asking a limiter, such as
// [IsPreflight].
func WithSkip(skip func(*http.Request) bool) Option {
	return func(s *settings) error { return middleware.SetFunc(&s.Skip, skip, "WithSkip: the function") }
}

// WithPolicy adds a limit that requests must pass too. All policies are asked at the
// same time, and a request is charged to all or none: if one refuses or fails, the
// permits that the others granted are given back. Until then other requests may be
// refused because of them.
//
// Policies over Client.Keyed limiters of one Client whose keys share a hash tag ([WithHashTag]) are one
// script call, which charges nothing if one refuses. Those in shadow are asked apart, and so are those with
// a lease or remembered refusals unless they are settled.
//
// With several policies all keys contain the policy's name, also that of New's limiter. So
// adding a second one resets the first one's counts, unless it has a Policy.Prefix.
func WithPolicy(p Policy) Option {
	return func(s *settings) error {
		s.added = append(s.added, p)
		return nil
	}
}

// WithTimeout bounds how long a request waits for the limiters to decide, by default
// [DefaultTimeout]; a shorter call timeout of the limiter counts. If a limiter takes longer, it has
// failed (see [WithFailure]). What it grants later is given back if the limiter is a [limit.Returner].
// A fallback gets the same time again, and so does giving back. With 0 only the request's context
// bounds the wait.
func WithTimeout(d time.Duration) Option {
	return func(s *settings) error { return s.SetTimeout(d) }
}

// WithFailure sets what answers a request if a limiter does not decide. With
// [limit.FailClosed] the answer is 503, with Retry-After. With [limit.FailOpen] the
// request passes that policy, and the headers leave the policy out. With
// [limit.FailLocal] this process decides, by a share of the limit.
//
// A limiter of this module decides by that policy as by its own WithFailure, which counts before
// this one; docs/outages.md says what an outage is. Any other limiter does not decide if it returns
// limit.ErrUnavailable, takes longer than [WithTimeout], or returns an error that is not one of
// package limit; FailLocal then needs a Policy.Window or a limit.Windowed, and takes the limit that
// the limiter reported last. Other errors are mistakes, and answered as without WithFailure.
//
// Without WithFailure and [WithFallback] every request asks its limiter, and gets 503 if
// that fails. With one of them, requests are answered at once after three undecided calls in a
// row; policies that are one script call count as one.
func WithFailure(f limit.Failure) Option {
	return func(s *settings) error { return s.SetFailure(f) }
}

// WithFallback sets a limiter that answers, under the same keys, if another does not decide. It
// takes the place of [WithFailure]. A [Local] limiter of the same rate can serve. If it fails
// too, the answer is 503.
func WithFallback(limiter limit.Limiter) Option {
	return func(s *settings) error { return s.SetFallback(limiter) }
}

// WithShadow lets every request pass, to see what a limit would do: limiters decide and
// charge, but refuse nothing. [WithObserver] receives what would have been refused, and
// [WithErrorHandler] receives failures. No header mentions limits. Requests that would have
// been refused are charged no more than without the option. Bad options are still answered
// with an error.
func WithShadow() Option {
	return (*settings).SetShadow
}

// WithObserver sets an observer that receives each policy's answer to each request
// (Decided), and each start and end of a policy's breaker (Happened). Policies have their
// own names there, and the Call is "httplimit". Observers of the limiters themselves receive it too.
func WithObserver(observer limit.Observer) Option {
	return func(s *settings) error { return s.SetObserver(observer) }
}

// WithErrorHandler sets a hook that is called before the answer, once for each request for
// which a limiter or a key function failed or a grant could not be given back. Refusals are
// not errors, nor are a cost that can't be found out ([WithCost]) and a client that went away.
// With [WithFailure] or [WithFallback] the first requests of an outage are reported, and no later
// ones. By default slog's default logger logs the errors.
//
// It is called too for what Policy.InFlight and Policy.Charge can't renew or settle, by any goroutine and also after the
// answer.
func WithErrorHandler(hook func(*http.Request, error)) Option {
	return func(s *settings) error { return middleware.SetFunc(&s.onError, hook, "WithErrorHandler: the hook") }
}

// WithRefusal sets the function that answers a refused request, in place of the problem
// description. The headers are already set, Retry-After too. The function writes the
// status, normally http.StatusTooManyRequests.
func WithRefusal(refuse func(http.ResponseWriter, *http.Request, Refusal)) Option {
	return func(s *settings) error {
		s.serverOnly = "WithRefusal"
		return middleware.SetFunc(&s.refuse, refuse, "WithRefusal: the function")
	}
}

// WithHeaders chooses the headers that describe limits to clients, by default [StandardHeaders].
func WithHeaders(h Headers) Option {
	return func(s *settings) error {
		if h != StandardHeaders && h != NoHeaders {
			return fmt.Errorf("WithHeaders: %d is neither StandardHeaders nor NoHeaders", h)
		}
		s.headers, s.serverOnly = h, "WithHeaders"
		return nil
	}
}

// WithLegacyHeaders adds X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, the
// last in Unix seconds. They describe one policy: of those that refuse, the one with the
// longest RetryAfter; if all grant, the one with the least remaining.
func WithLegacyHeaders() Option {
	return func(s *settings) error {
		s.legacy, s.serverOnly = true, "WithLegacyHeaders"
		return nil
	}
}

// DefaultPause is the longest time for which an upstream stops calls, unless [WithPause]
// sets another.
const DefaultPause = 5 * time.Minute

// WithPause bounds how long an upstream stops the calls of a transport, by default [DefaultPause]. A longer
// pause is cut to that. With 0 no upstream stops calls.
//
// An upstream stops calls by Retry-After-Ms or Retry-After with the status 403, 429, 503 or 529, or by a
// RateLimit header with any status if that says, by r=0 and t, that nothing is left for so many seconds.
func WithPause(most time.Duration) Option {
	return func(s *settings) error {
		s.maxPause, s.clientOnly = most, "WithPause"
		return checkBound("WithPause", most)
	}
}

// WithPauseOn sets a function that says for how long a response stops the calls of a transport, where the headers of
// [WithPause] do not. With 0 these count, and below 0 nothing stops calls. The function must not read the body, and is
// called by several goroutines.
func WithPauseOn(pauseOf func(*http.Response) time.Duration) Option {
	return func(s *settings) error {
		s.clientOnly = "WithPauseOn"
		return middleware.SetFunc(&s.pauseOn, pauseOf, "WithPauseOn: the function")
	}
}

// WithSharedPause lets all transports with the option whose clients use the same Redis know what one of them heard: within
// a second their calls of the same key stop too, and so do those of a program that is started later. By default a pause
// holds in one transport.
//
// A pause is a string that expires when it ends. Its key is the transport's key in braces with ":pause" behind, such as
// {upstream:api.example.org}:pause, or without the braces if the key has a hash tag. A transport that is used reads it
// about once a second, and a request waits for that only if what is known is older. An answer that begins a pause is
// returned once Redis has the key. While Redis does not answer, pauses hold in one transport, and
// others hear of them once it does.
func WithSharedPause(client *rratelimiter.Client) Option {
	return func(s *settings) error {
		s.clientOnly, s.sharing.Client = "WithSharedPause", client
		if client == nil {
			return errors.New("WithSharedPause: the Client is nil")
		}
		return client.Err()
	}
}

// WithWait bounds how long a call of a transport waits before it is sent. By default only the
// request's context does, which must last for the call too. A call that would have to wait longer
// fails at once. With 0 no call waits.
func WithWait(most time.Duration) Option {
	return func(s *settings) error {
		s.maxWait, s.clientOnly = most, "WithWait"
		return checkBound("WithWait", most)
	}
}

func checkBound(option string, most time.Duration) error {
	if most < 0 {
		return fmt.Errorf("%s: %v is below 0", option, most)
	}
	return nil
}
