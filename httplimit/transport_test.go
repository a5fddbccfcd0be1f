package httplimit_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

const api = "http://api.example.org/items"

func send(ctx context.Context, t testing.TB, transport http.RoundTripper, url string) (time.Duration, error) {
	t.Helper()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	start := time.Now()
	resp, err := transport.RoundTrip(r)
	if err == nil {
		assert.NoError(t, resp.Body.Close())
	}
	return time.Since(start), err
}

func notSent(t testing.TB, err error) *httplimit.NotSentError {
	t.Helper()
	var no *httplimit.NotSentError
	require.ErrorAs(t, err, &no)
	return no
}

// Each request, of a redirect too and one whose caller goes, is sent once and takes a permit of its host; bodies and trailers go through.
func TestTransportOverTheNetwork(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			var arrived redistest.List[string]
			ctx, cancel := context.WithCancel(t.Context())
			var server *httptest.Server
			server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, protocol, r.Proto)
				arrived.Add(r.URL.Path)
				switch r.URL.Path {
				case "/moved":
					http.Redirect(w, r, strings.Replace(server.URL, "127.0.0.1", "localhost", 1)+"/echo", http.StatusTemporaryRedirect)
					return
				case "/gone":
					cancel()
					<-r.Context().Done()
					return
				}
				w.Header().Set("Trailer", "X-Sum")
				_, _ = io.Copy(w, r.Body)
				w.Header().Set("X-Sum", "<"+r.Trailer.Get("X-Sent")+">")
			}))
			server.EnableHTTP2 = protocol == "HTTP/2.0"
			server.StartTLS()
			t.Cleanup(server.Close)
			base := server.Client().Transport.(*http.Transport)
			base.TLSClientConfig.ServerName = "example.com" // localhost has no certificate
			limiter := grants()
			client := &http.Client{Transport: httplimit.NewTransport(base, limiter)}
			post := func(path, trailer string, body io.Reader) {
				r := limitertest.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, body))(t)
				if trailer != "" {
					r.Trailer = http.Header{"X-Sent": {trailer}}
				}
				resp, err := client.Do(r)
				require.NoError(t, err)
				echo := limitertest.Must(io.ReadAll(resp.Body))(t)
				require.NoError(t, resp.Body.Close())
				assert.Equal(t, "hello", string(echo))
				assert.Equal(t, "<"+trailer+">", resp.Trailer.Get("X-Sum"))
			}
			post("/moved", "", strings.NewReader("hello"))
			post("/echo", "5", io.NopCloser(strings.NewReader("hello"))) // of unknown length, so that it has trailers
			_, err := send(ctx, t, client.Transport, server.URL+"/gone")
			require.ErrorIs(t, err, context.Canceled)
			var no *httplimit.NotSentError
			require.NotErrorAs(t, err, &no)
			client.CloseIdleConnections()
			assert.Equal(t, []string{"/moved", "/echo", "/echo", "/gone"}, arrived.All())
			at := "upstream:" + strings.ReplaceAll(strings.TrimPrefix(server.URL, "https://"), ":", "%3A")
			home := strings.Replace(at, "127.0.0.1", "localhost", 1)
			assert.Equal(t, []call{{Key: at, N: 1}, {Key: home, N: 1}, {Key: at, N: 1}, {Key: at, N: 1}}, limiter.Asked())
		})
	}
}

// The response and the errors of base are handed on as they are, and base learns of CloseIdleConnections.
func TestTransport_ReturnsBaseResponseAndErrors(t *testing.T) {
	t.Parallel()
	given, down := &http.Response{StatusCode: http.StatusTooManyRequests}, errors.New("no route to host")
	for _, want := range []error{nil, down} {
		content := &body{}
		r := limitertest.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, api, content))(t)
		got, err := httplimit.NewTransport(roundTripper(func(sent *http.Request) (*http.Response, error) {
			assert.Same(t, r, sent)
			return given, want
		}), grants()).RoundTrip(r) //nolint:bodyclose // it has none
		assert.Same(t, given, got)
		assert.Equal(t, want, err)
		assert.EqualValues(t, 1, content.closed.Load(), "by base alone")
	}
	base := &closing{}
	(&http.Client{Transport: httplimit.NewTransport(base, grants())}).CloseIdleConnections()
	assert.True(t, base.closed)
	(&http.Client{Transport: httplimit.NewTransport(answers(200), grants())}).CloseIdleConnections()
	server := httptest.NewServer(hello)
	t.Cleanup(server.Close)
	limiter := grants()
	fetch(t, httplimit.NewTransport(nil, limiter), server.URL)
	for _, r := range []*http.Request{{}, {URL: newRequest(t).URL}} {
		_, err := httplimit.NewTransport(nil, limiter).RoundTrip(r) //nolint:bodyclose // it fails
		require.Error(t, err, "base says what is wrong with it")
	}
	assert.Equal(t, "upstream:", limiter.Key(), "of no host")
}

type closing struct {
	roundTripper
	closed bool
}

func (c *closing) CloseIdleConnections() { c.closed = true }

// A request waits as long as its context and WithWait allow, and fails at once if that is known not to suffice.
func TestTransportWaits(t *testing.T) {
	t.Parallel()
	wait := func(most time.Duration) []httplimit.Option { return []httplimit.Option{httplimit.WithWait(most)} }
	const second, ms = time.Second, time.Millisecond
	late, gone := context.DeadlineExceeded, context.Canceled
	for name, c := range map[string]struct {
		opts   []httplimit.Option
		answer time.Duration // the limiter's RetryAfter if that is not a second
		in     time.Duration // the request's deadline; below 0, when its caller goes
		took   time.Duration
		err    error
		retry  time.Duration
		text   string
	}{
		"too short": {in: 2500 * ms, took: 2 * second, err: late, retry: second, text: "which has it in 1s: context deadline"},
		"the caller goes": {
			in: -1500 * ms, took: 1500 * ms, err: gone, retry: 500 * ms, text: `1.5s for 1 permit of "upstream:api.example.org"`,
		},
		"WithWait":          {opts: wait(1999 * ms), took: second, retry: second, text: "longer than WithWait"},
		"WithWait of more":  {opts: wait(3 * second), took: 3 * second},
		"WithWait of 0":     {opts: wait(0), retry: second, text: "longer than WithWait"},
		"of centuries":      {answer: math.MaxInt64 - 1, opts: wait(5 * second), retry: math.MaxInt64 - 1, text: "longer than WithWait"},
		"for what never is": {answer: math.MaxInt64, text: "waiting does not help"},
	} {
		synctest.Test(t, func(t *testing.T) {
			start, recorder := time.Now(), &limitertest.Recorder{}
			limiter := &fake{Answer: func(context.Context, int64) (limit.Decision, error) {
				return limit.Decision{Granted: time.Since(start) >= 3*second, Limit: 1, RetryAfter: cmp.Or(c.answer, second)}, nil
			}}
			ctx, cancel := middlewaretest.Ending(t.Context(), c.in)
			defer cancel()
			sent := false
			transport := httplimit.NewTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
				sent = true
				return answers(200)(r)
			}), limiter, append(c.opts, httplimit.WithObserver(recorder))...)
			took, err := send(ctx, t, transport, api)
			assert.Equal(t, c.took, took, name)
			assert.Equal(t, c.text == "", sent, name)
			require.Len(t, recorder.Decisions(), 1, "one that waits is one decision")
			if c.text == "" {
				require.NoError(t, err, name)
				return
			}
			no := notSent(t, err)
			require.ErrorContains(t, err, c.text)
			assert.Equal(t, []any{c.took, c.retry, int64(1), false}, []any{no.Waited, no.RetryAfter, no.Permits, no.Paused}, name)
			assert.Equal(t, errors.Is(c.err, late), no.Timeout(), name)
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
			}
		})
	}
}

// reads are the options of a program that reads a header of its upstream's.
func reads(opts ...httplimit.Option) []httplimit.Option {
	return append(opts, httplimit.WithPauseOn(func(resp *http.Response) time.Duration {
		d, _ := time.ParseDuration(resp.Header.Get("X-Backoff"))
		return d
	}))
}

// Upstreams say in many ways when to come again. That stops requests of their key, and of no other, for that long.
func TestTransportHeedsWhatUpstreamsSay(t *testing.T) {
	t.Parallel()
	const most, date, ahead = httplimit.DefaultPause, "Sat, 01 Jan 2000 00:00:00 GMT", "Sat, 01 Jan 2000 00:00:30 GMT"
	pause := func(most time.Duration) []httplimit.Option { return []httplimit.Option{httplimit.WithPause(most)} }
	for name, c := range map[string]struct {
		status int
		header []string
		want   time.Duration
		opts   []httplimit.Option
	}{
		"seconds":           {429, []string{"Retry-After", "7"}, 7 * time.Second, nil},
		"unavailable":       {503, []string{"Retry-After", " 7\t"}, 7 * time.Second, nil},
		"none":              {503, []string{"Retry-After", ""}, 0, nil},
		"another status":    {500, []string{"Retry-After", "7"}, 0, nil},
		"a fraction":        {429, []string{"Retry-After", "1.5"}, 2 * time.Second, nil},
		"less than one":     {503, []string{"Retry-After", ".001"}, time.Second, nil},
		"zero":              {429, []string{"Retry-After", "0"}, 0, nil},
		"no number":         {429, []string{"Retry-After", "soon"}, 0, nil},
		"long":              {429, []string{"Retry-After", "86400"}, most, nil},
		"huge":              {429, []string{"Retry-After", strings.Repeat("9", 99)}, most, nil},
		"bounded":           {429, []string{"Retry-After", "7"}, time.Second, pause(time.Second)},
		"not heeded":        {429, []string{"Retry-After", "7"}, 0, pause(0)},
		"shadow":            {429, []string{"Retry-After", "7"}, 0, []httplimit.Option{httplimit.WithShadow()}},
		"date":              {503, []string{"Retry-After", ahead, "Date", date}, 30 * time.Second, nil},
		"by its own clock":  {503, []string{"Retry-After", "Fri, 31 Dec 1999 23:59:59 GMT", "Date", "Fri, 31 Dec 1999 23:59:55 GMT"}, 4 * time.Second, nil},
		"without its clock": {503, []string{"Retry-After", ahead}, 30 * time.Second, nil},
		"past":              {503, []string{"Retry-After", date, "Date", ahead}, 0, nil},

		"forbidden":  {403, []string{"Retry-After", "7"}, 7 * time.Second, nil},
		"overloaded": {529, []string{"Retry-After", "7"}, 7 * time.Second, nil},
		"too large":  {413, []string{"Retry-After", "7"}, 0, nil},

		"ms":         {429, []string{"Retry-After-Ms", "1200"}, 1200 * time.Millisecond, nil},
		"ms first":   {503, []string{"Retry-After-Ms", " 1200 ", "Retry-After", "2"}, 1200 * time.Millisecond, nil},
		"no ms":      {429, []string{"Retry-After-Ms", "soon", "Retry-After", "2"}, 2 * time.Second, nil},
		"NaN ms":     {429, []string{"Retry-After-Ms", "NaN"}, 0, nil},
		"ms below 0": {429, []string{"Retry-After-Ms", "-5", "Retry-After", "2"}, 2 * time.Second, nil},
		"huge ms":    {429, []string{"Retry-After-Ms", strings.Repeat("9", 400)}, httplimit.DefaultPause, nil},

		"used up":             {200, []string{"RateLimit", `"default";r=0;t=2`}, 2 * time.Second, nil},
		"used up, no name":    {200, []string{"RateLimit", "r=0;t=2"}, 2 * time.Second, nil},
		"of several":          {200, []string{"RateLimit", `"a, \"";r=1;t=9, "b";r=0;t=3;pk=:AAE=:, "c";t=2;r=0`}, 3 * time.Second, nil},
		"Retry-After counts":  {429, []string{"RateLimit", `"default";r=0;t=38`, "Retry-After", "1"}, time.Second, nil},
		"some left":           {429, []string{"RateLimit", `"default";r=1;t=2`}, 0, nil},
		"no time":             {200, []string{"RateLimit", `"default";r=0`}, 0, nil},
		"below 0":             {200, []string{"RateLimit", `"default";r=0;t=-2`}, 0, nil},
		"used up, huge":       {200, []string{"RateLimit", `"default";r=0;t=999999999999999`}, httplimit.DefaultPause, nil},
		"a list":              {200, []string{"RateLimit", `("default");r=0;t=2`}, 0, nil},
		"another draft":       {200, []string{"RateLimit", "limit=10, remaining=0, reset=2"}, 0, nil},
		"no list":             {200, []string{"RateLimit", `"`}, 0, nil},
		"used up, not heeded": {200, []string{"RateLimit", `"default";r=0;t=2`}, 0, pause(0)},

		// What the program reads comes before that.
		"its own":            {200, []string{"X-Backoff", "90ms"}, 90 * time.Millisecond, reads()},
		"its own first":      {429, []string{"X-Backoff", "90ms", "Retry-After", "7"}, 90 * time.Millisecond, reads()},
		"its own says none":  {429, []string{"Retry-After", "7"}, 7 * time.Second, reads()},
		"its own says never": {429, []string{"X-Backoff", "-1s", "Retry-After", "7"}, 0, reads()},
		"its own, bounded":   {200, []string{"X-Backoff", "5h"}, most, reads()},
	} {
		synctest.Test(t, func(t *testing.T) { // it begins at date
			limiter, stops := grants(), answers(c.status, c.header...)
			transport := httplimit.NewTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
				return map[bool]roundTripper{true: stops, false: answers(200)}[r.URL.Path == "/items"](r)
			}), limiter, c.opts...)
			assert.Zero(t, fetch(t, transport, api))
			if c.want > 0 {
				ctx, cancel := context.WithTimeout(t.Context(), c.want)
				_, err := send(ctx, t, transport, api+"/other")
				cancel()
				no := notSent(t, err)
				assert.Equal(t, []any{"upstream:api.example.org", true, c.want}, []any{no.Key, no.Paused, no.RetryAfter}, name)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, "an upstream stops for "+c.want.String())
				assert.Len(t, limiter.Asked(), 1, "nothing is taken before")
			}
			assert.Zero(t, fetch(t, transport, "http://other.example.org/a"), name)
			assert.Equal(t, c.want, fetch(t, transport, api+"/other"), name)
		})
	}
}

// A KeyedLimiter waits by itself: in order, and woken by a release; a Client that is closed, a
// context and WithWait end that, and a stopped request does not ask.
func TestTransportWaitsInOrder(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		keyed := client.Keyed("", rratelimiter.Config{Rate: 1, Interval: time.Minute})
		order := make(chan string, 10)
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			order <- r.URL.Path
			return answers(503, "Retry-After", strings.TrimPrefix(r.URL.RawQuery, "stop="))(r)
		})
		transport := httplimit.NewTransport(base, keyed)
		const key = "upstream:api.example.org"
		require.NoError(t, keyed.Acquire(t.Context(), key, 1))
		for _, path := range []string{"/a", "/b", "/c?stop=90", "/d"} {
			go func() { _, _ = send(t.Context(), t, transport, "http://api.example.org"+path) }()
			time.Sleep(time.Second)
		}
		require.NoError(t, keyed.Release(t.Context(), key, 1))
		assert.Equal(t, "/a", <-order, "at once")
		start := time.Now()
		assert.Equal(t, "/b", <-order)
		assert.Equal(t, "/c", <-order)
		assert.Equal(t, 2*time.Minute, time.Since(start).Round(time.Second))
		time.Sleep(80 * time.Second)
		assert.False(t, limitertest.Must(keyed.Limiter(key).Exists(t.Context()))(t), "the limiter has expired, since /d does not ask")
		assert.Equal(t, "/d", <-order)
		assert.Equal(t, 210*time.Second, time.Since(start).Round(time.Second))
		took, err := send(t.Context(), t, httplimit.NewTransport(base, keyed, httplimit.WithWait(2*time.Second)), api)
		require.ErrorContains(t, err, "which has it in 1m0s: that is longer than WithWait allows")
		assert.Equal(t, []time.Duration{0, 0, time.Minute}, []time.Duration{took, notSent(t, err).Waited, notSent(t, err).RetryAfter})
		ctx := limitertest.Within(t, time.Second)
		took, err = send(ctx, t, transport, api)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.True(t, notSent(t, err).Timeout())
		assert.Equal(t, []time.Duration{0, 0, time.Minute}, []time.Duration{took, notSent(t, err).Waited, notSent(t, err).RetryAfter})
		costly := httplimit.NewTransport(base, keyed, httplimit.WithCost(func(*http.Request) (int64, error) { return 2, nil }),
			httplimit.WithPolicy(httplimit.Policy{Name: "b", Prefix: "b:", Limiter: says(limit.Decision{Limit: 9, RetryAfter: time.Hour}, nil)}))
		_, err = send(t.Context(), t, costly, api)
		require.ErrorIs(t, err, limit.ErrPermitsExceedRate)
		assert.Equal(t, key, notSent(t, err).Key)
		time.AfterFunc(time.Second, func() { assert.NoError(t, client.Close(context.Background())) })
		var errs middlewaretest.Errors
		took, err = send(t.Context(), t, httplimit.NewTransport(base, keyed, hearing(&errs)), api)
		require.ErrorIs(t, err, limit.ErrClosed)
		assert.Equal(t, time.Second, took)
		errs.Check(t, limit.ErrClosed)
		assert.Empty(t, order)
	})
}

// Limiters that were not made properly are found before any request. Key functions that were not are found where another calls them.
func TestCheck(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		invalid := rratelimiter.New(rdb, limitertest.Patient()).Keyed("", rratelimiter.PerDay(0))
		for name, opt := range map[string]httplimit.Option{
			"local": policy("hour", httplimit.Local(0, time.Hour)), "keyed": policy("hour", invalid),
			"fallback": httplimit.WithFallback(invalid),
		} {
			assert.ErrorIs(t, httplimit.New(grants(), opt).Err(), limit.ErrInvalidConfig, name)
		}
		for _, limiter := range middlewaretest.Limiters(limitertest.NewClient(t, rdb), 5, 10*time.Second) {
			require.NoError(t, httplimit.New(limiter, httplimit.WithKey(httplimit.Header("X"), httplimit.Host(), text("", errDown))).Err())
		}
	})
	for name, key := range badKeys() {
		var errs middlewaretest.Errors
		within := httplimit.WithKey(func(r *http.Request) (string, error) { return key(r) })
		w := serve(httplimit.New(grants(), hearing(&errs), within).Handler(refuseAll(t)), newRequest(t))
		assert.Equal(t, http.StatusInternalServerError, w.Code, name)
		errs.Check(t, limit.ErrInvalidConfig)
	}
}

// What a request keeps while it waits for another policy goes back if its caller leaves, and at once if an upstream pauses its key.
func TestTransport_KeptGrantsGoBack(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]int{"not paused": http.StatusOK, "paused": http.StatusTooManyRequests}, func(t *testing.T, status int) {
		first, asked := &returner{Fake: middlewaretest.Budget(2, time.Second)}, 0
		second := &returner{Fake: &fake{Answer: func(context.Context, int64) (limit.Decision, error) {
			asked++
			return limit.Decision{Granted: asked != 2, Limit: 10, RetryAfter: time.Second, ResetAfter: time.Minute}, nil
		}}}
		transport := httplimit.NewTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
			time.Sleep(1500 * time.Millisecond)
			return answers(status, "Retry-After", "9")(r)
		}), first, httplimit.WithPolicy(httplimit.Policy{Name: "second", Limiter: second}))
		go fetch(t, transport, api)
		time.Sleep(time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(2500*time.Millisecond, func() {
			assert.Len(t, second.GivenBack(), status/http.StatusTooManyRequests)
			cancel()
		})
		took, err := send(ctx, t, transport, api)
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 2500*time.Millisecond, took)
		assert.Len(t, second.GivenBack(), 1)
		assert.Len(t, second.Asked(), 3, "it was kept")
	})
}

// WithTimeout bounds each try of a request that waits for permits, and not how long it waits.
func TestTransport_TimeoutIsThatOfEachTry(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		var takes atomic.Int64
		takes.Store(int64(20 * ms))
		rdb.AddHook(redistest.BeforeCommands(func(...redis.Cmder) { time.Sleep(time.Duration(takes.Load())) }))
		keyed := limitertest.NewClient(t, rdb).Keyed("", limitertest.Every(1, time.Second))
		transport := func(opts ...httplimit.Option) http.RoundTripper {
			return httplimit.NewTransport(answers(http.StatusNoContent), keyed, append(opts, quiet)...)
		}
		for later := range 10 { // some are under way a second after they began to wait
			url := fmt.Sprintf("http://api%d.example.org", later)
			fetch(t, transport(), url)
			time.Sleep(time.Duration(later) * 5 * ms)
			fetch(t, transport(), url)
		}
		for url, opts := range map[string][]httplimit.Option{
			"http://a.example.org": nil, "http://b.example.org": {httplimit.WithWait(10 * time.Second)},
		} {
			fetch(t, transport(), url)
			silent := time.AfterFunc(500*ms, func() { takes.Store(int64(5 * time.Second)) })
			took, err := send(t.Context(), t, transport(opts...), url)
			require.ErrorIs(t, err, limit.ErrUnavailable)
			assert.False(t, silent.Stop())
			assert.Less(t, took, 2500*ms, "it waits for a second, and then for an answer")
			takes.Store(int64(20 * ms))
			time.Sleep(time.Minute)
		}
	})
}

func freeOf(t testing.TB, l *rratelimiter.KeyedLimiter, key string) int64 {
	t.Helper()
	return limitertest.Must(l.Peek(t.Context(), key, 0))(t).Remaining
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
