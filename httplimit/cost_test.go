package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A cost that is read from the body fails as the body does, which is the client's fault and no error of the server's.
func TestWithCost_BodyThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body io.Reader
		want int
	}{
		"whole":     {strings.NewReader("1234567"), http.StatusOK},
		"too large": {strings.NewReader("123456789"), http.StatusRequestEntityTooLarge},
		"broken":    {io.MultiReader(strings.NewReader("123"), broken{}), http.StatusBadRequest},
	} {
		var errs middlewaretest.Errors
		limiter := middlewaretest.Grants()
		handler := httplimit.New(limiter, hearing(&errs), httplimit.WithCost(func(r *http.Request) (int64, error) {
			body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, 8))
			return int64(len(body)), err
		})).Handler(hello)
		r := newRequest(t)
		r.Body = io.NopCloser(c.body)
		w := serve(handler, r)
		assert.Equal(t, c.want, w.Code, name)
		errs.Check(t)
		if c.want == http.StatusOK {
			assert.EqualValues(t, 7, limiter.Asked()[0].N)
			continue
		}
		assert.Empty(t, w.Header().Get("Retry-After"), name)
		assert.Empty(t, limiter.Asked(), name)
	}
}

// A client that leaves while its cost is found out gets no answer, and no one is to blame.
func TestWithCost_ClientLeaves(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]httplimit.Option{
		"cost": httplimit.WithCost(func(r *http.Request) (int64, error) { return 0, r.Context().Err() }),
		"key":  httplimit.WithKey(func(r *http.Request) (string, error) { return "", r.Context().Err() }),
	} {
		var errs middlewaretest.Errors
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		w := serve(httplimit.New(middlewaretest.Grants(), hearing(&errs), opt).Handler(hello), newRequest(t).WithContext(ctx))
		assert.Equal(t, http.StatusServiceUnavailable, w.Code, name)
		assert.Empty(t, w.Body, name)
		errs.Check(t)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the client went away") }

// A payload above the limit is refused for its size, and no observer counts it as an error: a client chooses it.
func TestWithCost_PayloadAboveTheLimitIsNoError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		var own, told limitertest.Recorder
		client := rratelimiter.New(rdb, rratelimiter.WithObserver(&own))
		perMinute := fixedwindow.New(limitertest.OpenClient(rdb, rratelimiter.WithObserver(&own)), fixedwindow.Config{Limit: 10, Window: time.Minute})
		for _, limiter := range []limit.Limiter{client.Keyed("", rratelimiter.PerMinute(10)), perMinute, middlewaretest.Says(limit.Decision{}, limit.ErrInvalidPermits)} {
			for _, cost := range []int64{11, 1 << 60} {
				handler := httplimit.New(limiter, httplimit.WithPrefix(fmt.Sprintf("%T:", limiter)), httplimit.WithObserver(&told),
					httplimit.WithCost(func(*http.Request) (int64, error) { return cost, nil })).Handler(refuseAll(t))
				assert.Equal(t, http.StatusTooManyRequests, serve(handler, newRequest(t)).Code)
				for _, d := range append(told.Decisions(), own.Decisions()...) {
					assert.Equal(t, limit.TooCostly, d.Outcome, "%T", limiter)
					require.NoError(t, d.Err)
					assert.Empty(t, d.Kind)
				}
			}
		}
	})
}
