package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

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
		"switches, closes":      {withBody(halves{plain, &closed}, http.StatusSwitchingProtocols), closeWrite(nil), 1},
		"switches, can't close": {withBody(plain, http.StatusSwitchingProtocols), closeWrite(http.ErrNotSupported), 1},
	}, func(t *testing.T, rdb redistest.Client, c row) {
		places := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerMinute(2))
		free := func() int64 { return freeOf(t, places, "upstream:api.example.org") }
		transport := httplimit.NewTransport(c.base, httplimit.Policy{Limiter: places, InFlight: true})
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		var resp *http.Response
		func() {
			defer func() { assert.Contains(t, []any{nil, "oops"}, recover()) }()
			resp, _ = transport.RoundTrip(httptest.NewRequestWithContext(ctx, http.MethodGet, api, http.NoBody))
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
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			took, err = send(ctx, t, transport, api)
			require.True(t, errors.Is(err, context.DeadlineExceeded) && notSent(t, err).Timeout())
			assert.Equal(t, 300*time.Millisecond, took.Truncate(100*time.Millisecond), name)
			time.AfterFunc(200*time.Millisecond, func() { assert.NoError(t, resp.Body.Close()) })
			took, err = send(t.Context(), t, transport, api)
			require.NoError(t, err)
			assert.Equal(t, 200*time.Millisecond, took.Truncate(100*time.Millisecond), name)
			assert.EqualValues(t, 1, freeOf(t, places, "places:api.example.org"))
		})
	}
	// A limiter of another module can't wait for a reservation: it is asked again.
	synctest.Test(t, func(t *testing.T) {
		waits := oneByOneReserver{&middlewaretest.Reserver{Fake: grants()}}
		transport := httplimit.NewTransport(answers(http.StatusOK), httplimit.Policy{Limiter: waits, InFlight: true})
		_, err := send(t.Context(), t, transport, api)
		require.NoError(t, err)
		assert.Equal(t, []int64{0}, waits.Settled)
	})
}

type oneByOneReserver struct{ *middlewaretest.Reserver }

func (oneByOneReserver) Acquire(context.Context, string, int64) error { panic("not asked") }
func (oneByOneReserver) Release(context.Context, string, int64) error { panic("not asked") }
