package httplimit_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limit"
)

var errDown = errors.New("connection refused")

func TestFailClosed(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]httplimit.Option{
		"default":   nil,
		"by option": {httplimit.WithFailure(limit.FailClosed())},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var errs errorLog
			w := serve(httplimit.New(says(limit.Decision{}, errDown), append(opts, httplimit.WithErrorHandler(errs.hook))...)(refuseAll(t)), newRequest(t))
			assert.Equal(t, http.StatusServiceUnavailable, w.Code)
			assert.Equal(t, "5", w.Header().Get("Retry-After"))
			assert.NotContains(t, w.Header(), http.CanonicalHeaderKey("RateLimit"))
			assert.Equal(t, "about:blank", problem(t, w)["type"])
			assert.NotContains(t, w.Body.String(), errDown.Error())
			require.Len(t, errs.all(), 1)
			assert.ErrorIs(t, errs.all()[0], errDown)
		})
	}
}

func TestFallbackOfUnknownWindow(t *testing.T) {
	t.Parallel()
	handler := httplimit.New(windowed{says(limit.Decision{}, errDown), time.Hour}, httplimit.WithErrorHandler(new(errorLog).hook),
		httplimit.WithFallback(grants()))(hello)
	w := serve(handler, newRequest(t))
	assert.Equal(t, map[string]int64{"q": 10, "w": 3600}, members(t, w.Header(), "RateLimit-Policy")[0].params)
}

func TestFailOpen(t *testing.T) {
	t.Parallel()
	var errs errorLog
	w := serve(httplimit.New(says(limit.Decision{}, errDown),
		httplimit.WithFailure(limit.FailOpen()), httplimit.WithErrorHandler(errs.hook), httplimit.WithLegacyHeaders())(hello), newRequest(t))
	assert.Equal(t, "hello", w.Body.String())
	for name := range w.Header() {
		assert.NotContains(t, strings.ToLower(name), "ratelimit")
	}
	require.Len(t, errs.all(), 1)
	assert.ErrorIs(t, errs.all()[0], errDown)
}

func TestFallback(t *testing.T) {
	t.Parallel()
	var errs errorLog
	redis := says(limit.Decision{}, errDown)
	handler := httplimit.New(windowed{redis, time.Hour}, httplimit.WithFallback(httplimit.Local(2, time.Minute)),
		httplimit.WithErrorHandler(errs.hook))(hello)
	assert.Equal(t, http.StatusOK, serve(handler, newRequest(t)).Code)
	w := serve(handler, newRequest(t))
	assert.Equal(t, http.StatusOK, w.Code)
	assert.Equal(t, map[string]int64{"q": 2, "w": 60}, members(t, w.Header(), "RateLimit-Policy")[0].params, "the fallback's own window")
	w = serve(handler, newRequest(t))
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Equal(t, "60", w.Header().Get("Retry-After"))
	assert.Len(t, errs.all(), 3, "each failure is told once")
	assert.Len(t, redis.asked(), 3, "as soon as Redis is back it decides")
}

func TestFallbackFailsToo(t *testing.T) {
	t.Parallel()
	var errs errorLog
	broken := errors.New("fallback is down")
	w := serve(httplimit.New(says(limit.Decision{}, errDown),
		httplimit.WithFallback(says(limit.Decision{}, broken)), httplimit.WithErrorHandler(errs.hook))(refuseAll(t)), newRequest(t))
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Len(t, errs.all(), 1)
	require.ErrorIs(t, errs.all()[0], errDown)
	assert.ErrorIs(t, errs.all()[0], broken)
}

// A limiter that is not configured properly does not fail open, nor does a
// fallback stand in for it for ever.
func TestMisconfiguredLimiter(t *testing.T) {
	t.Parallel()
	for _, f := range []httplimit.Option{httplimit.WithFailure(limit.FailClosed()), httplimit.WithFailure(limit.FailOpen()), httplimit.WithFallback(grants())} {
		var errs errorLog
		w := serve(httplimit.New(httplimit.Local(0, time.Minute), f, httplimit.WithErrorHandler(errs.hook))(refuseAll(t)), newRequest(t))
		assert.Equal(t, http.StatusInternalServerError, w.Code)
		assert.NotContains(t, w.Header(), "Retry-After")
		problem(t, w)
		require.Len(t, errs.all(), 1)
		assert.ErrorIs(t, errs.all()[0], limit.ErrInvalidConfig)
	}
}

// deaf is a limiter that answers after a time, whatever its context says.
func deaf(after time.Duration) *fake {
	return &fake{answer: func(context.Context, int64) (limit.Decision, error) {
		time.Sleep(after)
		return limit.Decision{Granted: true, Limit: 1}, nil
	}}
}

func TestSlowLimiterIsBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		opts []httplimit.Option
		want time.Duration
	}{
		"default":  {nil, httplimit.DefaultTimeout},
		"option":   {[]httplimit.Option{httplimit.WithTimeout(20 * time.Millisecond)}, 20 * time.Millisecond},
		"no bound": {[]httplimit.Option{httplimit.WithTimeout(0)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var errs errorLog
				handler := httplimit.New(deaf(time.Minute), append(test.opts, httplimit.WithErrorHandler(errs.hook))...)(hello)
				began := time.Now()
				w := serve(handler, newRequest(t))
				if test.want == 0 {
					assert.Equal(t, time.Minute, time.Since(began))
					assert.Equal(t, http.StatusOK, w.Code)
					return
				}
				assert.Equal(t, test.want, time.Since(began))
				assert.Equal(t, http.StatusServiceUnavailable, w.Code)
				require.Len(t, errs.all(), 1)
				require.ErrorIs(t, errs.all()[0], context.DeadlineExceeded)
				time.Sleep(time.Minute)
			})
		})
	}
}

// A client that goes away is no failure of the limiter, and not answered for.
func TestClientGoesAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var errs errorLog
		heeding := &fake{answer: func(ctx context.Context, _ int64) (limit.Decision, error) {
			<-ctx.Done()
			return limit.Decision{}, ctx.Err()
		}}
		for _, limiter := range []limit.Limiter{heeding, deaf(time.Minute)} {
			for _, f := range []httplimit.Option{httplimit.WithFailure(limit.FailClosed()), httplimit.WithFailure(limit.FailOpen()), httplimit.WithFallback(grants())} {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(10*time.Millisecond, cancel)
				began := time.Now()
				w := serve(httplimit.New(limiter, f, httplimit.WithErrorHandler(errs.hook))(refuseAll(t)), newRequest(t).WithContext(ctx))
				assert.Equal(t, 10*time.Millisecond, time.Since(began))
				assert.Empty(t, w.Body.Bytes())
			}
		}
		assert.Empty(t, errs.all())
		time.Sleep(time.Minute)
	})
}

// A deadline that the application set is another matter: the limiter was too
// slow for it.
func TestDeadlineOfTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var errs errorLog
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		fallback := grants()
		w := serve(httplimit.New(deaf(time.Minute), httplimit.WithErrorHandler(errs.hook),
			httplimit.WithFallback(fallback))(refuseAll(t)), newRequest(t).WithContext(ctx))
		assert.Equal(t, http.StatusServiceUnavailable, w.Code)
		require.Len(t, errs.all(), 1)
		require.ErrorIs(t, errs.all()[0], context.DeadlineExceeded)
		time.Sleep(time.Minute)
		assert.Empty(t, fallback.asked(), "it is too late for that")
	})
}

func TestErrorsAreLoggedByDefault(t *testing.T) { //nolint:paralleltest // slog's default logger is everyone's
	var out strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	defer slog.SetDefault(before)
	serve(httplimit.New(says(limit.Decision{}, errDown))(refuseAll(t)), newRequest(t))
	assert.Contains(t, out.String(), errDown.Error())
	assert.Contains(t, out.String(), "level=ERROR")
}
