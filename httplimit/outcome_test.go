package httplimit_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// hijackable is a recorder whose connection can be taken over.
type hijackable struct{ *httptest.ResponseRecorder }

func (hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, nil }

// writes returns a handler that writes these statuses.
func writes(statuses ...int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for _, status := range statuses {
			w.WriteHeader(status)
		}
	}
}

// byStatus charges a request as many permits as its status says.
func byStatus(_ *http.Request, status int) int64 { return int64(status) }

// settles returns a handler that settles its request.
func settles(t *testing.T, actual int64) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) { assert.NoError(t, httplimit.Settle(r.Context(), actual)) }
}

// A request is charged by the status that its client has got. A handler that settles wins, also if it settles with what was
// reserved. What was not charged stays so.
func TestPolicyCharge(t *testing.T) {
	t.Parallel()
	down, refuses := says(limit.Decision{}, limit.ErrUnavailable), says(limit.Decision{Limit: 5}, nil)
	for name, c := range map[string]struct {
		handle  http.HandlerFunc
		leaves  bool  // the client does, before it
		want    int   // the status
		limiter *fake // nil: it grants
		opt     httplimit.Option
		charge  func(r *http.Request, status int) int64 // nil: by the status
		settled []int64                                 // nil: as many as the status says
	}{
		"nothing": {handle: writes(), want: 200},
		"a body":  {handle: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, want: 200},
		"bytes":   {handle: hello, want: 200},
		"a copy":  {handle: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, strings.NewReader("hello")) }, want: 200},
		"no copy": {handle: func(w http.ResponseWriter, _ *http.Request) {
			if n, err := io.Copy(w, iotest.ErrReader(errDown)); n == 0 && err != nil {
				w.WriteHeader(http.StatusBadGateway)
			}
		}, want: 502},
		"a status": {handle: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) }, want: 401},
		"two":      {handle: writes(202, 500), want: 202},
		"hints":    {handle: writes(103, 404), want: 404},
		"a panic":  {handle: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, want: 500},
		"a stream": {handle: func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			writes(500)(w, r)
		}, want: 200},
		"taken over": {handle: func(w http.ResponseWriter, _ *http.Request) { _, _, _ = w.(http.Hijacker).Hijack() }, want: 101},
		"switched": {handle: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusSwitchingProtocols)
			_, _, _ = http.NewResponseController(w).Hijack()
		}, want: 101},
		"no push": {handle: func(w http.ResponseWriter, _ *http.Request) {
			assert.ErrorIs(t, w.(http.Pusher).Push("/style.css", nil), http.ErrNotSupported)
		}, want: 200},
		// A client that has left may have got the answer or not.
		"left":         {handle: writes(), leaves: true, want: httplimit.StatusClientGone},
		"left, served": {handle: writes(202), leaves: true, want: 202},

		"settled":      {handle: settles(t, 3), want: 200, settled: []int64{3}},
		"as reserved":  {handle: settles(t, 1), want: 200, settled: []int64{1}},
		"refused":      {limiter: refuses},
		"open":         {limiter: down, handle: writes(), want: 200, opt: httplimit.WithFailure(limit.FailOpen()), settled: []int64{}},
		"in shadow":    {handle: writes(), want: 200, opt: httplimit.WithShadow()},
		"free":         {handle: writes(), opt: httplimit.WithCost(func(*http.Request) (int64, error) { return 0, nil })},
		"below 0 is 0": {handle: writes(), want: 200, charge: func(*http.Request, int) int64 { return -1 }, settled: []int64{0}},
	} {
		var got, want []int
		if c.want > 0 {
			want = []int{c.want}
		}
		if c.settled == nil && c.want > 0 {
			c.settled = []int64{int64(c.want)}
		}
		if c.opt == nil {
			c.opt = quiet
		}
		ctx, leave := context.WithCancel(t.Context())
		reserver := &middlewaretest.Reserver{Fake: cmp.Or(c.limiter, grants())}
		limits := httplimit.New(httplimit.Policy{Limiter: reserver, Charge: func(r *http.Request, status int) int64 {
			assert.Equal(t, "/items/1", r.URL.Path)
			got = append(got, status)
			if c.charge != nil {
				return c.charge(r, status)
			}
			return byStatus(r, status)
		}}, quiet, c.opt)
		require.NoError(t, limits.Err())
		func() {
			defer func() { assert.Equal(t, strings.Contains(name, "panic"), recover() != nil, name) }()
			limits.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if c.leaves {
					leave()
				}
				c.handle(w, r)
			})).ServeHTTP(hijackable{httptest.NewRecorder()}, newRequest(t).WithContext(ctx))
		}()
		leave()
		assert.Equal(t, want, got, name)
		assert.Equal(t, append([]int64(nil), c.settled...), reserver.Settled, name)
	}
	var errs middlewaretest.Errors
	p := httplimit.Policy{Name: "logins", Limiter: &middlewaretest.Reserver{Fake: grants(), Fails: limit.ErrUnavailable}, Charge: byStatus}
	serve(httplimit.New(p, hearing(&errs)).Handler(hello), newRequest(t))
	require.ErrorContains(t, errs.Take()[0], `httplimit: policy "logins": `)
	p.Limiter = grants()
	require.ErrorIs(t, httplimit.New(p).Err(), limit.ErrUnsupported)
}

// gone is a recorder that knows when the client has left, and wrapped one behind another ResponseWriter.
type (
	gone struct {
		*httptest.ResponseRecorder
		left chan bool
	}
	wrapped struct {
		http.ResponseWriter
		by http.ResponseWriter
	}
)

func (w gone) CloseNotify() <-chan bool       { return w.left }
func (w wrapped) Unwrap() http.ResponseWriter { return w.by }

// Handlers of older code, such as gin's streams, find a CloseNotifier.
func TestPolicyCharge_CloseNotifier(t *testing.T) {
	t.Parallel()
	knows, recorder := gone{httptest.NewRecorder(), make(chan bool, 1)}, httptest.NewRecorder()
	knows.left <- true
	for name, c := range map[string]struct {
		w    http.ResponseWriter
		want int
	}{"has it": {knows, 1}, "behind": {wrapped{recorder, knows}, 1}, "does not": {recorder, 0}, "nor behind": {wrapped{recorder, recorder}, 0}} {
		limits := httplimit.New(httplimit.Policy{
			Limiter: &middlewaretest.Reserver{Fake: grants()}, Charge: func(*http.Request, int) int64 { return 1 },
		})
		limits.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			assert.Len(t, w.(http.CloseNotifier).CloseNotify(), c.want, name) //nolint:staticcheck // older code has it
		})).ServeHTTP(c.w, newRequest(t))
	}
}

// Where a policy waits for Settle, a handler that calls it settles that one. One with a Charge beside it, or in another
// middleware, is charged by the status.
func TestPolicyCharge_BesideSettle(t *testing.T) {
	t.Parallel()
	var all [4]*middlewaretest.Reserver
	for i := range all {
		all[i] = &middlewaretest.Reserver{Fake: grants()}
	}
	outer := httplimit.New(httplimit.Policy{Name: "tokens", Limiter: all[0], Settle: true},
		httplimit.WithPolicy(httplimit.Policy{Name: "both", Limiter: all[1], Settle: true, Charge: byStatus}),
		httplimit.WithPolicy(httplimit.Policy{Name: "failures", Limiter: all[2], Charge: byStatus}))
	inner := httplimit.New(httplimit.Policy{Name: "more failures", Limiter: all[3], Charge: byStatus})
	serve(outer.Handler(inner.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.NoError(t, httplimit.Settle(r.Context(), 1234))
		w.WriteHeader(http.StatusTeapot)
	}))), newRequest(t))
	for i, want := range []int64{1234, 1234, http.StatusTeapot, http.StatusTeapot} {
		assert.Equal(t, []int64{want}, all[i].Settled)
	}
}

// A Charge and an error handler that panic do not end the program, also where the response ends with its context.
func TestPolicyCharge_Panics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var errs middlewaretest.Errors
		fails := &middlewaretest.Reserver{Fake: grants(), Fails: limit.ErrUnavailable}
		others := &middlewaretest.Reserver{Fake: grants()}
		charge := func(*http.Request, int) int64 { return 7 }
		transport := httplimit.NewTransport(answersBody(http.StatusOK), httplimit.Policy{
			Name: "mine", Limiter: &middlewaretest.Reserver{Fake: grants()},
			Charge: func(*http.Request, int) int64 { panic("oops") },
		}, httplimit.WithPolicy(httplimit.Policy{Name: "fails", Limiter: fails, Charge: charge}),
			httplimit.WithPolicy(httplimit.Policy{Name: "others", Limiter: others, Charge: charge}),
			httplimit.WithErrorHandler(func(_ *http.Request, err error) {
				errs.Add(err)
				panic("too")
			}))
		ctx, leave := context.WithCancel(t.Context())
		_, err := transport.RoundTrip(newRequest(t).WithContext(ctx)) //nolint:bodyclose // it ends with its context
		require.NoError(t, err)
		leave()
		synctest.Wait()
		got := errs.Take()
		require.Len(t, got, 2)
		require.EqualError(t, got[0], `httplimit: policy "mine": panic: oops`)
		require.ErrorIs(t, got[1], limit.ErrUnavailable)
		assert.Equal(t, []int64{7}, others.Settled)
	})
}

// A transport is charged by what upstreams answer, 0 if there is no answer.
func TestPolicyCharge_Transport(t *testing.T) {
	t.Parallel()
	for _, want := range []int{http.StatusOK, http.StatusServiceUnavailable, 0} {
		upstream := &middlewaretest.Reserver{Fake: grants()}
		transport := httplimit.NewTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
			if want == 0 {
				return nil, errDown
			}
			return answers(want)(r)
		}), httplimit.Policy{Limiter: upstream, Charge: byStatus})
		require.NoError(t, transport.Err())
		_, err := send(t.Context(), t, transport, api)
		assert.Equal(t, want == 0, err != nil)
		assert.Equal(t, []int64{int64(want)}, upstream.Settled)
	}
}

// freeOf returns what is free of a key of a limiter.
func freeOf(t testing.TB, l *rratelimiter.KeyedLimiter, key string) int64 {
	t.Helper()
	d, err := l.Peek(t.Context(), key, 0)
	require.NoError(t, err)
	return d.Remaining
}

// A place is free once the handler has returned, also one that has hijacked the connection, or whose client has left.
func TestPolicyInFlight_HowRequestsEnd(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t)
	places := limitertest.NewClient(t, rdb).Keyed(redistest.Name(t), rratelimiter.PerHour(1))
	left := make(chan struct{})
	handlers := map[string]http.HandlerFunc{
		"/hijacks": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			assert.NoError(t, err)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			_ = conn.Close()
		},
		"/panics": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"/leaves": func(_ http.ResponseWriter, r *http.Request) {
			close(left)
			<-r.Context().Done()
		},
		"/streams": func(w http.ResponseWriter, _ *http.Request) {
			for range 3 {
				_, _ = io.WriteString(w, "more")
				assert.NoError(t, http.NewResponseController(w).Flush())
			}
		},
	}
	var handling sync.WaitGroup
	limits := httplimit.New(httplimit.Policy{Limiter: places, InFlight: true}, httplimit.WithKey(httplimit.Path()),
		httplimit.WithTimeout(time.Minute), httplimit.WithErrorHandler(func(_ *http.Request, err error) { assert.NoError(t, err) }))
	handler := limits.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handlers[r.URL.Path](w, r) }))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handling.Add(1)
		defer handling.Done()
		handler.ServeHTTP(w, r)
	}))
	defer server.Close()
	for path := range handlers {
		ctx, cancel := context.WithCancel(t.Context())
		if path == "/leaves" {
			go func() {
				<-left
				cancel()
			}()
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, http.NoBody)
		require.NoError(t, err)
		if resp, err := server.Client().Do(r); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		handling.Wait()
		assert.EqualValues(t, 1, freeOf(t, places, "http:"+path), path)
		cancel()
	}
}

// switched is the connection of a request that has switched protocols.
type switched struct {
	io.ReadCloser
	io.Writer
}

// halves is a connection that can be closed for writing.
type halves struct {
	switched

	closed *bool
}

func (h halves) CloseWrite() error {
	*h.closed = true
	return nil
}

// A request of a transport is in flight until its response's body is closed or was read to its end, or it has failed. After a switch
// of protocols more may be written, and the connection can be closed for that.
func TestTransport_InFlight(t *testing.T) {
	t.Parallel()
	withBody := func(body io.ReadCloser, status int) roundTripper {
		return func(r *http.Request) (*http.Response, error) {
			resp, err := answers(status)(r)
			resp.Body = body
			return resp, err
		}
	}
	readAll := func(resp *http.Response, _ func()) { _, _ = io.ReadAll(resp.Body) }
	closed, plain := false, switched{http.NoBody, io.Discard}
	closeWrite := func(want error) func(*http.Response, func()) {
		return func(resp *http.Response, _ func()) {
			assert.ErrorIs(t, resp.Body.(interface{ CloseWrite() error }).CloseWrite(), want)
		}
	}
	type row struct {
		base roundTripper
		use  func(resp *http.Response, leave func()) // before the body is closed
		free int64                                   // of 2, then
	}
	limitertest.Virtual(t, map[string]row{
		"is read in part": {answersBody(http.StatusOK), func(resp *http.Response, _ func()) {
			_, err := io.ReadFull(resp.Body, make([]byte, 5))
			assert.NoError(t, err)
			time.Sleep(10 * time.Minute) // it is renewed
		}, 1},
		"is read to its end": {answersBody(http.StatusOK), readAll, 2},
		"has no body":        {answers(http.StatusOK), nil, 2},
		"has a nil body":     {withBody(nil, http.StatusOK), nil, 2},
		"ends with its context": {answersBody(http.StatusOK), func(_ *http.Response, leave func()) {
			leave()
			synctest.Wait()
		}, 2},
		"fails":  {func(*http.Request) (*http.Response, error) { return nil, errDown }, nil, 2},
		"panics": {func(*http.Request) (*http.Response, error) { panic("oops") }, nil, 2},
		"switches protocols": {withBody(plain, http.StatusSwitchingProtocols), func(resp *http.Response, _ func()) {
			_, err := io.WriteString(resp.Body.(io.Writer), "hello")
			assert.NoError(t, err)
			readAll(resp, nil)
		}, 1},
		"switches, closes":      {withBody(halves{plain, &closed}, http.StatusSwitchingProtocols), closeWrite(nil), 1}, //nolint:bodyclose // below
		"switches, can't close": {withBody(plain, http.StatusSwitchingProtocols), closeWrite(http.ErrNotSupported), 1}, //nolint:bodyclose // below
	}, func(t *testing.T, rdb redistest.Client, c row) {
		places := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerMinute(2))
		free := func() int64 { return freeOf(t, places, "upstream:api.example.org") }
		transport := httplimit.NewTransport(c.base, httplimit.Policy{Limiter: places, InFlight: true})
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		var resp *http.Response
		func() {
			defer func() { assert.Contains(t, []any{nil, "oops"}, recover()) }()
			resp, _ = transport.RoundTrip(httptest.NewRequestWithContext(ctx, http.MethodGet, api, http.NoBody)) //nolint:bodyclose // below
		}()
		if c.use != nil {
			assert.EqualValues(t, 1, free())
			c.use(resp, leave)
		}
		assert.Equal(t, c.free, free())
		if resp != nil && resp.Body != nil {
			require.NoError(t, resp.Body.Close())
			assert.EqualValues(t, 2, free())
			require.NoError(t, resp.Body.Close())
		}
		assert.EqualValues(t, 2, free())
	})
	t.Cleanup(func() { assert.True(t, closed) })
}

// A call waits for a place until its time is over, since one may come at any moment. While it waits, nothing stays taken.
func TestTransport_GivesUpAPlace(t *testing.T) {
	t.Parallel()
	for name, more := range map[string][]httplimit.Policy{"alone": nil, "beside a rate": {{Name: "rate", Limiter: httplimit.Local(100, time.Second)}}} {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			places := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerHour(1))
			opts := []httplimit.Option{httplimit.WithWait(time.Minute)}
			for _, p := range more {
				opts = append(opts, httplimit.WithPolicy(p))
			}
			policy := httplimit.Policy{Limiter: places, InFlight: true, Prefix: "places:"}
			transport := httplimit.NewTransport(answersBody(http.StatusOK), policy, opts...)
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, api, http.NoBody)
			resp, err := transport.RoundTrip(r)
			require.NoError(t, err)
			took, err := send(t.Context(), t, transport, api)
			_ = notSent(t, err)
			assert.Equal(t, time.Minute, took.Truncate(time.Second), name)
			for _, waits := range []*httplimit.Transport{transport, httplimit.NewTransport(answersBody(http.StatusOK), policy, opts[1:]...)} {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				took, err = send(ctx, t, waits, api)
				cancel()
				require.True(t, errors.Is(err, context.DeadlineExceeded) && notSent(t, err).Timeout())
				assert.Equal(t, 300*time.Millisecond, took.Truncate(100*time.Millisecond), name)
			}
			time.AfterFunc(200*time.Millisecond, func() { assert.NoError(t, resp.Body.Close()) })
			took = fetch(t, transport, api)
			assert.Equal(t, 200*time.Millisecond, took.Truncate(100*time.Millisecond), name)
			assert.EqualValues(t, 1, freeOf(t, places, "places:api.example.org"))
		})
	}
	// A limiter of another module can't wait for a reservation: it is asked again.
	synctest.Test(t, func(t *testing.T) {
		waits := oneByOneReserver{&middlewaretest.Reserver{Fake: grants()}}
		transport := httplimit.NewTransport(answers(http.StatusOK), httplimit.Policy{Limiter: waits, InFlight: true})
		fetch(t, transport, api)
		assert.Equal(t, []int64{0}, waits.Settled)
	})
}

type oneByOneReserver struct{ *middlewaretest.Reserver }

func (oneByOneReserver) Acquire(context.Context, string, int64) error { panic("not asked") }
func (oneByOneReserver) Release(context.Context, string, int64) error { panic("not asked") }
