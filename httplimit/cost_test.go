package httplimit_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
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

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the client went away") }

// A payload above the limit is refused for its size, with the limit, and no observer counts it as an error: a client
// chooses it.
func TestWithCost_PayloadAboveTheLimitIsNoError(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		var own, told limitertest.Recorder
		limiters := middlewaretest.Limiters(t, rdb, rratelimiter.WithObserver(&own))
		limiters["foreign"] = says(limit.Decision{}, limit.ErrInvalidPermits)
		for name, limiter := range limiters {
			for _, cost := range []int64{6, 1 << 60} {
				handler := httplimit.New(limiter, httplimit.WithPrefix(name+":"), httplimit.WithObserver(&told),
					httplimit.WithCost(func(*http.Request) (int64, error) { return cost, nil })).Handler(refuseAll(t))
				w := serve(handler, newRequest(t))
				assert.Equal(t, http.StatusTooManyRequests, w.Code, name)
				known := map[bool]string{true: `"default";q=5;w=10`}[cost == 6 && name != "foreign"]
				assert.Equal(t, known, w.Header().Get("RateLimit-Policy"), name)
				assert.NotContains(t, w.Header(), http.CanonicalHeaderKey("RateLimit"), name)
				assert.NotContains(t, w.Header(), "Retry-After", name)
				decisions := append(told.Decisions(), own.Decisions()...)
				assert.NotEmpty(t, decisions, name)
				for _, d := range decisions {
					assert.Equal(t, limit.TooCostly, d.Outcome, name)
					require.NoError(t, d.Err)
					assert.Empty(t, d.Kind)
				}
			}
		}
	})
}
