package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
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

// freeOf returns what is free of a key of a limiter.
func freeOf(t testing.TB, l *rratelimiter.KeyedLimiter, key string) int64 {
	t.Helper()
	d, err := l.Peek(t.Context(), key, 0)
	require.NoError(t, err)
	return d.Remaining
}

// A request passes a rate and a limit in flight by one decision, and is charged to both or none. Only what is in flight comes
// back at its end.
func TestPolicyInFlight_BesideRates(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		rate, places := client.Keyed("", rratelimiter.PerMinute(100)), client.Keyed("", rratelimiter.PerMinute(2))
		var handle func()
		limits := httplimit.New(httplimit.Policy{Name: "rate", Limiter: rate},
			httplimit.WithPolicy(httplimit.Policy{Name: "at-once", Limiter: places, InFlight: true}),
			httplimit.WithKey(httplimit.Header("X-User")), httplimit.WithHashTag()).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if f := handle; f != nil {
				handle = nil
				f()
			}
		}))
		ask := func(f func()) *httptest.ResponseRecorder {
			handle = f
			r := newRequest(t)
			r.Header.Set("X-User", "ann")
			return serve(limits, r)
		}
		left := func() []int64 {
			return []int64{freeOf(t, rate, "http:rate:{ann}"), freeOf(t, places, "http:at-once:{ann}")}
		}
		ask(nil)
		calls := limitertest.CountCommands(rdb)
		ask(func() {
			assert.Equal(t, 1, calls.Scripts(), "one decision")
			assert.Equal(t, []int64{98, 1}, left())
			w := ask(func() {
				w := ask(nil)
				assert.Equal(t, http.StatusTooManyRequests, w.Code)
				assert.Equal(t, []any{"at-once"}, problem(t, w)["violated-policies"])
				assert.Equal(t, "1", w.Header().Get("Retry-After"))
				assert.Equal(t, []int64{97, 0}, left())
			})
			assert.Equal(t, `"rate";q=100;w=60, "at-once";q=2`, w.Header().Get("RateLimit-Policy"))
			assert.Equal(t, `"rate";r=97;t=60, "at-once";r=0`, w.Header().Get("RateLimit"))
		})
		assert.Equal(t, []int64{97, 2}, left())
		before := calls.Scripts()
		ask(nil)
		assert.Equal(t, 2, calls.Scripts()-before, "one for the decision, one at the end")
	})
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

// A Redis that hangs at the end of a request delays its answer for the middleware's timeout. The place comes back when it
// answers, and Close waits for that.
func TestPolicyInFlight_RedisHangsAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		proxy, hung := redistest.MiniProxy(t, m), make(chan struct{})
		client := rratelimiter.New(proxy.Client(t, nil), rratelimiter.WithCallTimeout(time.Minute))
		limits := httplimit.New(httplimit.Policy{Limiter: client.Keyed("", rratelimiter.PerHour(1)), InFlight: true}, httplimit.WithKey(httplimit.Path()))
		start := time.Now()
		w := serve(limits.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Pass.Until(hung) })
		})), newRequest(t))
		assert.Equal(t, http.StatusOK, w.Code)
		assert.Equal(t, httplimit.DefaultTimeout, time.Since(start))
		time.AfterFunc(3*time.Second, func() { close(hung) })
		require.NoError(t, client.Close(t.Context()))
		assert.EqualValues(t, 1, freeOf(t, limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerHour(1)), "http:/items/1"))
	})
}

// awayServer returns a client of a server that a switch takes away.
func awayServer(t *testing.T) (client *rratelimiter.Client, rdb redistest.Client, away *atomic.Bool) {
	t.Helper()
	rdb, m := redistest.Mini(t)
	proxy, away := redistest.MiniProxy(t, m), new(atomic.Bool)
	proxy.OnCommand(func(redistest.Command) redistest.Action {
		return map[bool]redistest.Action{true: redistest.Cut, false: redistest.Pass}[away.Load()]
	})
	return limitertest.NewClient(t, proxy.Client(t, nil)), rdb, away
}

// A place comes back, and a status is charged, once Redis answers again that did not when the request ended.
func TestPolicyInFlight_RedisIsAwayAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, rdb, away := awayServer(t)
		var errs middlewaretest.Errors
		limits := httplimit.New(httplimit.Policy{Name: "at-once", Limiter: client.Keyed("", rratelimiter.PerHour(1)), InFlight: true},
			httplimit.WithPolicy(httplimit.Policy{
				Name: "failed", Limiter: client.Keyed("", rratelimiter.PerHour(9)),
				Charge: func(_ *http.Request, status int) int64 { return int64(status / 100) },
			}), httplimit.WithKey(httplimit.Path()), hearing(&errs))
		w := serve(limits.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { away.Store(true) })), newRequest(t))
		assert.Equal(t, http.StatusOK, w.Code)
		time.Sleep(time.Minute)
		assert.Len(t, errs.Take(), 2)
		away.Store(false)
		time.Sleep(time.Minute)
		for policy, free := range map[string]int64{"at-once": 1, "failed": 7} {
			assert.Equal(t, free, freeOf(t, limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerHour(9)), "http:"+policy+":/items/1"), policy)
		}
	})
}

// A place is still renewed if Redis answers again shortly before it would come back by itself.
func TestPolicyInFlight_RedisIsAwayMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, rdb, away := awayServer(t)
		places := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerMinute(1))
		var errs middlewaretest.Errors
		limits := httplimit.New(httplimit.Policy{Limiter: client.Keyed("", rratelimiter.PerMinute(1)), InFlight: true, Hold: 30 * time.Second},
			httplimit.WithKey(httplimit.Path()), hearing(&errs))
		serve(limits.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			time.Sleep(9 * time.Second)
			away.Store(true)
			time.Sleep(16 * time.Second)
			away.Store(false)
			for range 20 {
				time.Sleep(time.Second)
				assert.Zero(t, freeOf(t, places, "http:/items/1"))
			}
		})), newRequest(t))
		errs.Check(t)
		assert.EqualValues(t, 1, freeOf(t, places, "http:/items/1"))
	})
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

// The connection of a request that has switched protocols can still be closed for writing.
func TestTransport_CloseWrite(t *testing.T) {
	t.Parallel()
	closed, plain := false, switched{http.NoBody, io.Discard}
	for body, want := range map[io.ReadCloser]error{plain: http.ErrNotSupported, halves{plain, &closed}: nil} {
		limiter := &middlewaretest.Reserver{Fake: grants()}
		transport := httplimit.NewTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
			resp, err := answers(http.StatusSwitchingProtocols)(r)
			resp.Body = body
			return resp, err
		}), httplimit.Policy{Limiter: limiter, InFlight: true})
		resp, err := transport.RoundTrip(newRequest(t))
		require.NoError(t, err)
		conn, ok := resp.Body.(interface{ CloseWrite() error })
		require.True(t, ok)
		require.ErrorIs(t, conn.CloseWrite(), want)
		assert.Empty(t, limiter.Settled)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, []int64{0}, limiter.Settled)
	}
	assert.True(t, closed)
}

// A request of a transport is in flight until its response's body is closed or was read to its end, or it has failed.
func TestTransport_InFlight(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		places := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerMinute(2))
		var base roundTripper
		transport := httplimit.NewTransport(roundTripper(func(r *http.Request) (*http.Response, error) { return base(r) }),
			httplimit.Policy{Limiter: places, InFlight: true}, httplimit.WithKey(httplimit.Host()))
		require.NoError(t, transport.Err())
		free := func() int64 { return freeOf(t, places, "upstream:api.example.org") }
		send := func() (*http.Response, error) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, api, http.NoBody)
			return transport.RoundTrip(r)
		}
		base = answersBody(http.StatusOK)
		resp, err := send()
		require.NoError(t, err)
		_, err = io.ReadFull(resp.Body, make([]byte, 5))
		require.NoError(t, err)
		time.Sleep(10 * time.Minute)
		assert.EqualValues(t, 1, free(), "it is renewed")
		require.NoError(t, resp.Body.Close())
		assert.EqualValues(t, 2, free())
		require.NoError(t, resp.Body.Close())

		resp, err = send()
		require.NoError(t, err)
		assert.EqualValues(t, 1, free())
		_, err = io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.EqualValues(t, 2, free(), "it was read to its end")
		require.NoError(t, resp.Body.Close())
		assert.EqualValues(t, 2, free())

		base = answers(http.StatusOK)
		_, err = send() //nolint:bodyclose // it has none
		require.NoError(t, err)
		assert.EqualValues(t, 2, free(), "there is no body")

		base = func(r *http.Request) (*http.Response, error) {
			resp, err := answers(http.StatusOK)(r)
			resp.Body = nil
			return resp, err
		}
		_, err = send() //nolint:bodyclose // it has none
		require.NoError(t, err)
		assert.EqualValues(t, 2, free())
		base = answersBody(http.StatusOK)
		ctx, leave := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, api, http.NoBody)
		_, err = transport.RoundTrip(r) //nolint:bodyclose // it has ended
		require.NoError(t, err)
		leave()
		synctest.Wait()
		assert.EqualValues(t, 2, free(), "the response has ended with its context")

		base = func(*http.Request) (*http.Response, error) { return nil, errDown }
		_, err = send() //nolint:bodyclose // there is none
		require.ErrorIs(t, err, errDown)
		assert.EqualValues(t, 2, free())
		base = func(*http.Request) (*http.Response, error) { panic("oops") }
		assert.PanicsWithValue(t, "oops", func() { _, _ = send() }) //nolint:bodyclose // there is none
		assert.EqualValues(t, 2, free())

		base = func(r *http.Request) (*http.Response, error) {
			resp, _ := answers(http.StatusSwitchingProtocols)(r)
			resp.Body = switched{http.NoBody, io.Discard}
			return resp, nil
		}
		resp, err = send()
		require.NoError(t, err)
		_, err = io.WriteString(resp.Body.(io.Writer), "hello")
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.EqualValues(t, 1, free(), "more may be written")
		require.NoError(t, resp.Body.Close())
		assert.EqualValues(t, 2, free())
	})
}

// Requests of a transport that wait for a place are sent as soon as one is free, however far away the moment is at which that
// would come back by itself, and for a single policy in order. Of several policies each keeps what it has granted.
func TestTransport_WaitsForPlaces(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]func(*rratelimiter.Client) []httplimit.Option{
		"alone": func(*rratelimiter.Client) []httplimit.Option { return nil },
		"beside a rate": func(c *rratelimiter.Client) []httplimit.Option {
			return []httplimit.Option{httplimit.WithPolicy(httplimit.Policy{Name: "rate", Limiter: c.Keyed("", rratelimiter.PerSecond(5))})}
		},
		"beside other places": func(c *rratelimiter.Client) []httplimit.Option {
			return []httplimit.Option{httplimit.WithPolicy(httplimit.Policy{Name: "others", Limiter: c.Keyed("", rratelimiter.PerHour(3)), InFlight: true})}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
				client := limitertest.NewClient(t, rdb)
				var inFlight, most atomic.Int64
				var order redistest.List[string]
				base := roundTripper(func(r *http.Request) (*http.Response, error) {
					order.Add(r.Header.Get("X-Number"))
					most.Store(max(most.Load(), inFlight.Add(1)))
					return answersBody(http.StatusOK)(r)
				})
				transport := httplimit.NewTransport(base,
					httplimit.Policy{Name: "places", Limiter: client.Keyed("", rratelimiter.PerHour(2)), InFlight: true}, more(client)...)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				var all sync.WaitGroup
				for i := range 8 {
					all.Go(func() {
						time.Sleep(time.Duration(i) * time.Millisecond)
						r := httptest.NewRequestWithContext(ctx, http.MethodGet, api, http.NoBody)
						r.Header.Set("X-Number", string(rune('a'+i)))
						resp, err := transport.RoundTrip(r)
						if assert.NoError(t, err) {
							time.Sleep(10 * time.Second)
							inFlight.Add(-1)
							assert.NoError(t, resp.Body.Close())
						}
					})
				}
				start := time.Now()
				all.Wait()
				assert.EqualValues(t, 2, most.Load())
				assert.Less(t, time.Since(start), 40*time.Second+100*time.Millisecond)
				if name == "alone" {
					assert.Equal(t, []string{"a", "b", "c", "d", "e", "f", "g", "h"}, order.All())
				}
			})
		})
	}
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

// A place that a call keeps while it waits for a rate is one that it still has when it is sent: it is not kept for its hold.
func TestTransport_KeepsNoPlaceThatComesBack(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		places, rate := client.Keyed("", rratelimiter.PerHour(2)), client.Keyed("", limitertest.Every(1, 10*time.Second))
		require.NoError(t, places.Acquire(t.Context(), "places:api.example.org", 1)) // for an hour
		occupy := func(d time.Duration) {
			r, err := places.Limiter("places:api.example.org").Reserve(t.Context(), 1, 0)
			assert.True(t, err == nil && r.Granted)
			time.Sleep(d)
			assert.NoError(t, r.Cancel(t.Context()))
		}
		transport := httplimit.NewTransport(answers(http.StatusOK),
			httplimit.Policy{Name: "places", Prefix: "places:", Limiter: places, InFlight: true, Hold: 4 * time.Second},
			httplimit.WithPolicy(httplimit.Policy{Name: "rate", Prefix: "rate:", Limiter: rate}))
		go occupy(1500 * time.Millisecond)
		synctest.Wait()
		time.AfterFunc(time.Second, func() { // while the call waits for the place
			assert.NoError(t, rate.Acquire(t.Context(), "rate:api.example.org", 1))
		})
		time.AfterFunc(7*time.Second, func() { occupy(7 * time.Second) })
		took, err := send(t.Context(), t, transport, api)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, took, 14*time.Second)
	})
}

// A place that comes back while a call is refused is asked for at once.
func TestTransport_TakesAPlaceThatCameBackMeanwhile(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		var slow atomic.Bool // answers, but not what is done
		rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, next func() error) error {
			err := next()
			if slow.Load() {
				time.Sleep(100 * time.Millisecond)
			}
			return err
		}))
		places := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerHour(1))
		transport := httplimit.NewTransport(answersBody(http.StatusOK), httplimit.Policy{Limiter: places, InFlight: true, Prefix: "places:"},
			httplimit.WithPolicy(httplimit.Policy{Name: "rate", Limiter: httplimit.Local(100, time.Second)}))
		resp, err := transport.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet, api, http.NoBody))
		require.NoError(t, err)
		slow.Store(true)
		time.AfterFunc(50*time.Millisecond, func() {
			slow.Store(false)
			assert.NoError(t, resp.Body.Close())
		})
		took, err := send(t.Context(), t, transport, api)
		require.NoError(t, err)
		assert.Equal(t, 100*time.Millisecond, took.Truncate(50*time.Millisecond))
	})
}

// onePlace is a limiter with one place, which is taken while held. Its answers take 10 ms.
type onePlace struct{ held atomic.Bool }

func (p *onePlace) Take(ctx context.Context, key string, n int64) (limit.Decision, error) {
	d, _, err := p.TakeReserved(ctx, key, n)
	return d, err
}

func (p *onePlace) TakeReserved(context.Context, string, int64) (limit.Decision, func(context.Context, int64) error, error) {
	granted := p.held.CompareAndSwap(false, true)
	time.Sleep(10 * time.Millisecond)
	if !granted {
		return limit.Decision{Limit: 1, RetryAfter: time.Hour, ResetAfter: time.Hour}, nil, nil
	}
	return limit.Decision{Granted: true, Limit: 1, ResetAfter: time.Hour}, func(context.Context, int64) error {
		p.held.Store(false)
		return nil
	}, nil
}

// Requests of two programs that want the same two places and first get one each do not wait for each other.
func TestTransport_WantsTwoPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := new(onePlace), new(onePlace)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var all sync.WaitGroup
		request := func() {
			transport := httplimit.NewTransport(answers(http.StatusOK), httplimit.Policy{Name: "first", Limiter: first, InFlight: true},
				httplimit.WithPolicy(httplimit.Policy{Name: "second", Limiter: second, InFlight: true}))
			all.Go(func() { assert.NoError(t, limitertest.Second(send(ctx, t, transport, api))) })
		}
		second.held.Store(true)
		request() // gets the first, and gives it back since it has to wait for the second
		time.Sleep(5 * time.Millisecond)
		request() // waits for the first, and asks again while the other does
		time.Sleep(500 * time.Millisecond)
		second.held.Store(false)
		all.Wait()
	})
}

// A place that all tenants share is not kept from others by a tenant whose requests wait for one of its own.
func TestTransport_KeepsNoPlaceForAnother(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		shared, own := client.Keyed("", rratelimiter.PerHour(2)), client.Keyed("", rratelimiter.PerHour(1))
		transport := httplimit.NewTransport(answersBody(http.StatusOK), httplimit.Policy{Name: "shared", Limiter: shared, InFlight: true},
			httplimit.WithPolicy(httplimit.Policy{Name: "own", Limiter: own, InFlight: true, Key: []httplimit.KeyFunc{httplimit.Path()}}))
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.org/ann", http.NoBody)
		resp, err := transport.RoundTrip(r)
		require.NoError(t, err)
		var all sync.WaitGroup
		all.Go(func() { fetch(t, transport, "/ann") })
		time.Sleep(90 * time.Second) // it has asked again and again
		took, err := send(t.Context(), t, transport, "http://api.example.org/bob")
		require.NoError(t, err)
		assert.Less(t, took, 100*time.Millisecond)
		require.NoError(t, resp.Body.Close())
		all.Wait()
		assert.EqualValues(t, 2, freeOf(t, shared, "upstream:shared:api.example.org"))
	})
}

type oneByOneReserver struct{ *middlewaretest.Reserver }

func (oneByOneReserver) Acquire(context.Context, string, int64) error { panic("not asked") }
func (oneByOneReserver) Release(context.Context, string, int64) error { panic("not asked") }
