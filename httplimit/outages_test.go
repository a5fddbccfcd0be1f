package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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

// A transport whose limiter waits for permits behaves as one that is asked again and again.
func TestTransport_OutagesWhileTheLimiterWaits(t *testing.T) {
	t.Parallel()
	middlewaretest.Outages(t, middlewaretest.Guarded{
		Fallbacks: true,
		Open: func(t *testing.T, rdb redistest.Client, how middlewaretest.Instead, told func(error)) middlewaretest.Asking {
			t.Helper()
			opts := []httplimit.Option{
				httplimit.WithWait(10 * time.Millisecond),
				httplimit.WithErrorHandler(func(_ *http.Request, err error) { told(err) }),
			}
			if how.Failure != nil {
				opts = append(opts, httplimit.WithFailure(*how.Failure))
			} else {
				opts = append(opts, httplimit.WithFallback(how.Fallback))
			}
			keyed := limitertest.NewClient(t, rdb).Keyed("rate:", rratelimiter.PerHour(8))
			transport := httplimit.NewTransport(answers(http.StatusNoContent), keyed, opts...)
			return func(ctx context.Context) (bool, error) {
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.org/", http.NoBody)
				require.NoError(t, err)
				resp, err := transport.RoundTrip(r) //nolint:bodyclose // it has none
				var no *httplimit.NotSentError
				if errors.As(err, &no) && !errors.Is(err, limit.ErrUnavailable) {
					return false, nil
				}
				return resp != nil, err
			}
		},
	})
}

// The limiter's own policy answers within the middleware's timeout, which is shorter than that of calls.
func TestMiddleware_ShorterTimeoutCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, _ func() error) error {
			time.Sleep(3 * time.Second)
			return redistest.Fail(cmds, context.DeadlineExceeded)
		}))
		told := &limitertest.Recorder{}
		client := limitertest.NewClient(t, rdb, rratelimiter.WithFailure(limit.FailLocal(0.25)), rratelimiter.WithObserver(told))
		watched := &limitertest.Recorder{}
		handle := wrap(t, httplimit.Policy{Name: "users", Limiter: client.Keyed("rate:", rratelimiter.PerHour(40))}, quiet, httplimit.WithObserver(watched))
		for i := range 20 {
			start, want := time.Now(), middlewaretest.Passed
			if i >= 10 {
				want = middlewaretest.Refused
			}
			assert.Equal(t, want, handle(t.Context(), "").Verdict, "request %d", i)
			if i < 3 {
				assert.Equal(t, time.Second, time.Since(start))
			} else {
				assert.LessOrEqual(t, time.Since(start), 5*time.Millisecond)
			}
		}
		synctest.Wait()
		count := func(r *limitertest.Recorder) (limiters []string) {
			for _, e := range r.Events() {
				if e.Kind == limit.AskedNoMore {
					limiters = append(limiters, e.Limiter)
				}
			}
			return limiters
		}
		assert.Equal(t, []string{""}, count(told), "the Client's observer learns it")
		assert.Equal(t, []string{"users"}, count(watched), "and the middleware's")
		for _, d := range watched.Decisions() {
			assert.Equal(t, limit.FromLocal, d.Source)
		}
		time.Sleep(time.Minute)
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
		rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, send func() error) error {
			time.Sleep(time.Duration(takes.Load()))
			return send()
		}))
		keyed := limitertest.NewClient(t, rdb).Keyed("", limitertest.Every(1, time.Second))
		transport := func(opts ...httplimit.Option) http.RoundTripper {
			return httplimit.NewTransport(answers(http.StatusNoContent), keyed, append(opts, quiet)...)
		}
		for later := range 10 { // some are under way a second after they began to wait
			url := fmt.Sprintf("http://api%d.example.org", later)
			_, err := send(t.Context(), t, transport(), url)
			require.NoError(t, err)
			time.Sleep(time.Duration(later) * 5 * ms)
			_, err = send(t.Context(), t, transport(), url)
			require.NoError(t, err, "%d", later)
		}

		for url, opts := range map[string][]httplimit.Option{
			"http://a.example.org": nil, "http://b.example.org": {httplimit.WithWait(10 * time.Second)},
		} {
			_, err := send(t.Context(), t, transport(), url)
			require.NoError(t, err)
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
