package httplimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// NewTransport returns a RoundTripper that sends requests through base once limiter grants them:
//
//	client := &http.Client{Transport: httplimit.NewTransport(nil, perUpstream)}
//
// If base is nil, http.DefaultTransport sends them. By default a request takes one permit under the key
// "upstream:" and its [Host]. The limiter may be a [Policy]. The options are those of [New], except
// WithRefusal, WithHeaders and WithLegacyHeaders, which are errors here. With [WithShadow] no request waits.
//
// A request waits for its permits until its context or [WithWait] ends, and fails at once if it
// is known to get none before. If the upstream says when to come again, requests of the same key, those
// that wait too, wait for that long, bounded by [WithPause]; [WithSharedPause] lets all programs know. Of
// several policies it is the key of the first that the request costs something. A request that is not sent fails with
// a [*NotSentError]. With a KeyedLimiter, requests of this program are served in order. docs/http.md
// has more about both ways of waiting.
func NewTransport(base http.RoundTripper, limiter limit.Limiter, opts ...Option) *Transport {
	if base == nil {
		base = http.DefaultTransport
	}
	g := newGate(limiter, true, opts)
	t := &Transport{gate: g, base: base}
	if t.pauses.most = g.maxPause; g.sharing.Client != nil && g.maxPause > 0 {
		t.pauses.shared = &shared{Pauses: g.sharing, timeout: cmp.Or(g.Timeout, DefaultTimeout)}
	}
	return t
}

// Transport is a RoundTripper that waits for permits. Make it with [NewTransport].
type Transport struct {
	gate   *gate
	base   http.RoundTripper
	pauses pauses
}

// Err returns what is wrong with the options, as [Middleware.Err] does.
func (t *Transport) Err() error { return t.gate.Err() }

// NotSentError says why a transport of [NewTransport] did not send a request. Nothing was sent, so
// the request can be tried again.
type NotSentError struct {
	Key     string // the key whose permits it needed; "" if no limiter was to be asked
	Permits int64

	// Waited is how long it waited, and RetryAfter how much longer it would have had to
	// wait, as far as known; 0 if waiting does not help.
	Waited, RetryAfter time.Duration

	// Paused reports whether the upstream stopped the request, for example by Retry-After, not the limiter.
	Paused bool

	// Err is the reason: the context's error, which is context.DeadlineExceeded also if the
	// deadline would have come too early; limit.ErrPermitsExceedRate if waiting does not help;
	// or the error of the limiter, a key function or the options.
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
		text += fmt.Sprintf(", which an upstream stops for %v more", e.RetryAfter)
	case e.RetryAfter > 0:
		text += fmt.Sprintf(", which has %s in %v", them, e.RetryAfter)
	}
	return text + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *NotSentError) Unwrap() error { return e.Err }

// Timeout reports whether the request's deadline came too early, for url.Error.
func (e *NotSentError) Timeout() bool { return errors.Is(e.Err, context.DeadlineExceeded) }

var (
	errMaxWait = errors.New("that is longer than WithWait allows")
	errNever   = fmt.Errorf("%w: waiting does not help", limit.ErrPermitsExceedRate)
)

// RoundTrip sends a request once it has its permits.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := false
	defer func() {
		// Also when a limiter panics: a RoundTripper must close the body.
		if !sent && r.Body != nil {
			_ = r.Body.Close()
		}
	}()
	key, end, err := t.admit(r)
	if err != nil {
		return nil, err
	}
	status, open := 0, false
	defer func() {
		if end != nil && !open {
			end(status)
		}
	}()
	sent = true
	resp, err := t.base.RoundTrip(r)
	if key != "" && err == nil && resp != nil {
		t.hear(r, key, resp)
	}
	if end != nil && err == nil && resp != nil {
		status, open = resp.StatusCode, resp.Body != nil && resp.Body != http.NoBody
		if open {
			resp.Body = ending(r.Context(), resp.Body, func() { end(resp.StatusCode) })
		}
	}
	return resp, err
}

// ending returns a response's body after which end is called: once it is closed, or was read to its end, or ctx has ended and
// with it the response.
func ending(ctx context.Context, body io.ReadCloser, end func()) io.ReadCloser {
	if w, ok := body.(io.Writer); ok { // the connection, after a switch of protocols, which outlives ctx
		return switchedBody{endingBody{body, end}, w}
	}
	leave := context.AfterFunc(ctx, end)
	return endingBody{body, func() {
		leave()
		end()
	}}
}

type endingBody struct {
	io.ReadCloser

	end func()
}

func (b endingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end()
	}
	return n, err
}

func (b endingBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// switchedBody is the connection after a switch of protocols.
type switchedBody struct {
	endingBody
	io.Writer
}

// Read does not end the request: what is written may go on.
func (b switchedBody) Read(p []byte) (int, error) { return b.ReadCloser.Read(p) }

// CloseWrite ends what is written, while the other side may still write.
func (b switchedBody) CloseWrite() error {
	if w, ok := b.Writer.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return http.ErrNotSupported
}

// hear pauses a key if the response asks for that.
func (t *Transport) hear(r *http.Request, key string, resp *http.Response) {
	d := t.gate.heard(resp)
	if d <= 0 {
		return
	}
	until := time.Now().Add(d)
	if t.pauses.extend(key, until) && t.pauses.shared != nil {
		t.pauses.shared.write(r.Context(), key, until, resp)
	}
}

// CloseIdleConnections closes the idle connections of base.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// admit returns once the request may be sent. It returns the key that its upstream may pause, "" if the request is not
// limited, and what ends the request, nil if nothing is to be done then.
func (t *Transport) admit(r *http.Request) (key string, end func(status int), err error) {
	g := t.gate
	if g.Invalid != nil {
		g.onError(r, g.Invalid)
		return "", nil, &NotSentError{Err: g.Invalid}
	}
	if r.URL == nil {
		return "", nil, nil // base reports what is wrong with the request
	}
	questions, err := g.questions(r)
	if err != nil && !g.Shadow {
		return "", nil, &NotSentError{Err: err}
	}
	if len(questions) == 0 {
		return "", nil, nil
	}
	w := &wait{gate: g, pauses: &t.pauses, ctx: r.Context(), questions: questions, start: time.Now()}
	w.waits = len(questions) == 1 && !g.Shadow && g.maxWait != 0 && questions[0].Limit.WaitsItself()
	err = w.obtain()
	if w.asked {
		g.report(r, w.questions, w.verdict)
	}
	if err != nil {
		return "", nil, err
	}
	return questions[0].Key, g.begin(r, w.questions), nil
}
