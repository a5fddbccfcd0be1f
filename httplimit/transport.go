package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/ask"
	"github.com/rratelimiter/rratelimiter/limit"
)

// NewTransport returns a RoundTripper that sends requests by base once limiter grants them, for
// an http.Client that keeps to what an upstream allows:
//
//	client := &http.Client{Transport: httplimit.NewTransport(nil, perUpstream)}
//
// If base is nil it is http.DefaultTransport. A request takes one permit for its [Host], under
// the keys "upstream:" + host; [WithPrefix], [WithKey], [WithCost], [WithSkip] and [WithPolicy]
// change that as they do for [New]. A redirect is a request of its own. The same request is given
// to base once at most. It is not changed, nor is the response, whose body nobody else reads.
//
// A request waits for its permits until its context or [WithWait] ends. A limiter with the methods
// Acquire and Release of a KeyedLimiter waits itself, so that requests of this program are served
// in order and learn of permits that it releases: for such a limiter WithWait is the only bound
// beside the context, and its own call timeout stands in for [WithTimeout]. All others, and those
// with several policies, WithFailure or WithFallback, are asked again when they said that they could
// grant, in no order. There a request fails at once if its deadline comes before that, and with
// WithWait(0) or during an upstream's Retry-After everywhere.
//
// An upstream that answers 429 or 503 with Retry-After, in seconds or as a date, stops the
// requests of the same key for so long, at most as long as [WithPause] allows. With several policies
// the key is that of the first. The pause is this transport's: other programs do not learn of it,
// nor do other transports. They share what the limiter counts, where the request that was
// answered so stays charged.
//
// A request that is not sent fails with a [*NotSentError]. [WithFailure], [WithFallback], [WithShadow],
// [WithObserver] and [WithErrorHandler] are those of [New], with two differences: where New answers 503
// or 500 the request fails; with WithShadow nothing waits, not for an upstream's Retry-After
// either. WithRefusal, WithHeaders and WithLegacyHeaders make no sense here.
func NewTransport(base http.RoundTripper, limiter limit.Limiter, opts ...Option) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	t := &transport{middleware: newMiddleware(limiter, true, opts), base: base}
	if t.err == nil && len(t.policies) == 1 && !t.Shadow && t.maxWait != 0 {
		t.waiter, _ = t.policies[0].limit.Waiter()
	}
	return t
}

// NotSentError says why a transport of [NewTransport] did not send a request. Nothing was sent, so
// the request can be tried again.
type NotSentError struct {
	Key     string // what it wanted permits of, "" if no limiter was to be asked
	Permits int64

	// Waited is how long it waited, and RetryAfter how long it would have had to wait yet, as far
	// as that is known. 0 where waiting does not help.
	Waited, RetryAfter time.Duration

	// Paused reports whether an upstream's Retry-After stopped the request, not the limiter.
	Paused bool

	// Err is the reason: the context's error, which is context.DeadlineExceeded also where the
	// deadline would have come too early; limit.ErrPermitsExceedRate where waiting does not help;
	// or what the limiter, a key function or the options reported.
	Err error
}

func (e *NotSentError) Error() string {
	if e.Key == "" {
		return "httplimit: not sent: " + e.Err.Error()
	}
	permits, them := "permits", "them"
	if e.Permits == 1 {
		permits, them = "permit", "it"
	}
	text := fmt.Sprintf("httplimit: not sent: waited %v for %d %s of %q", e.Waited, e.Permits, permits, e.Key)
	switch {
	case e.Paused:
		text += fmt.Sprintf(", which an upstream's Retry-After stops for %v more", e.RetryAfter)
	case e.RetryAfter > 0:
		text += fmt.Sprintf(", which has %s in %v", them, e.RetryAfter)
	}
	return text + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *NotSentError) Unwrap() error { return e.Err }

// Timeout reports whether the request's deadline came too early, as url.Error asks.
func (e *NotSentError) Timeout() bool { return errors.Is(e.Err, context.DeadlineExceeded) }

var (
	errMaxWait = errors.New("that is longer than WithWait allows")
	errNever   = fmt.Errorf("%w: waiting does not help", limit.ErrPermitsExceedRate)
)

// transport is a RoundTripper that waits for permits.
type transport struct {
	*middleware

	base   http.RoundTripper
	waiter ask.Waiter // the limiter, if that is to wait
	pauses pauses
}

// RoundTrip sends a request once it has its permits.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := false
	defer func() {
		// Also when a limiter panics: a RoundTripper must close the body.
		if !sent && r.Body != nil {
			_ = r.Body.Close()
		}
	}()
	key, err := t.admit(r)
	if err != nil {
		return nil, err
	}
	sent = true
	resp, err := t.base.RoundTrip(r)
	if key != "" && err == nil && resp != nil {
		t.pauses.hear(key, resp, t.maxPause)
	}
	return resp, err
}

// CloseIdleConnections closes those of base.
func (t *transport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// admit returns once the request may be sent, with the key that its upstream may stop: "" if the
// request is not limited.
func (t *transport) admit(r *http.Request) (key string, err error) {
	if t.err != nil {
		t.onError(r, t.err)
		return "", &NotSentError{Err: t.err}
	}
	if r.URL == nil {
		return "", nil // base says what is wrong with it
	}
	n := t.costOf(r)
	if n <= 0 {
		return "", nil
	}
	results, err := t.questions(r)
	if err != nil {
		t.onError(r, err)
		if t.Shadow {
			return "", nil
		}
		return "", &NotSentError{Err: err}
	}
	w := &wait{transport: t, ctx: r.Context(), n: n, results: results, start: time.Now()}
	err = w.obtain()
	if w.asked {
		t.report(r, w.results, n, w.verdict)
	}
	if err != nil {
		return "", err
	}
	return results[0].Key, nil
}
