package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// Nobody is refused and nobody is told of a limit; what is charged, and what is
// reported, is as without the option.
func TestShadow(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		told := &limitertest.Recorder{}
		minute := slidinglog.New(rdb, slidinglog.Config{Limit: 2, Window: time.Minute})
		hour := slidinglog.New(rdb, slidinglog.Config{Limit: 100, Window: time.Hour})
		handler := httplimit.New(minute, httplimit.WithName("minute"), httplimit.WithShadow(), httplimit.WithObserver(told),
			httplimit.WithLegacyHeaders(), httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: hour}))(hello)
		for range 5 {
			w := serve(handler, newRequest(t))
			assert.Equal(t, "hello", w.Body.String())
			assert.Len(t, w.Header(), 1, "Content-Type")
		}
		outcomes := map[string][]limit.Outcome{}
		for _, d := range told.Decisions() {
			outcomes[d.Limiter] = append(outcomes[d.Limiter], d.Outcome)
			assert.True(t, d.Shadow)
			assert.Equal(t, "httplimit", d.Call)
			assert.Equal(t, limit.FromLimiter, d.Source)
			assert.EqualValues(t, 1, d.Permits)
		}
		granted, refused := limit.Granted, limit.Refused
		assert.Equal(t, []limit.Outcome{granted, granted, refused, refused, refused}, outcomes["minute"])
		d, err := hour.Peek(t.Context(), "http:hour:192.0.2.1", 1)
		require.NoError(t, err)
		assert.EqualValues(t, 97, d.Remaining, "after a third: what one policy would refuse is charged to none")
	})
}

// Whatever fails, the handler gets the request, and somebody hears of it.
func TestShadowOfWhatFails(t *testing.T) {
	t.Parallel()
	down := says(limit.Decision{}, errDown)
	noKey := httplimit.WithKey(func(*http.Request) (string, error) { return "", errDown })
	for name, c := range map[string]struct {
		limiter limit.Limiter
		opts    []httplimit.Option
		heard   error
	}{
		"down":          {down, nil, errDown},
		"closed":        {down, []httplimit.Option{httplimit.WithFailure(limit.FailClosed())}, errDown},
		"both":          {down, []httplimit.Option{httplimit.WithFallback(down)}, errDown},
		"misconfigured": {says(limit.Decision{}, limit.ErrInvalidConfig), nil, limit.ErrInvalidConfig},
		"key":           {grants(), []httplimit.Option{noKey}, errDown},
		"too costly":    {says(limit.Decision{}, limit.ErrPermitsExceedRate), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var errs errorLog
			w := serve(httplimit.New(c.limiter, append(c.opts, httplimit.WithShadow(), httplimit.WithErrorHandler(errs.hook))...)(hello), newRequest(t))
			assert.Equal(t, "hello", w.Body.String())
			if c.heard == nil {
				assert.Empty(t, errs.all())
				return
			}
			require.Len(t, errs.all(), 1)
			assert.ErrorIs(t, errs.all()[0], c.heard)
		})
	}
}

// Options that make no sense show at once, in shadow too.
func TestShadowOfBadOptions(t *testing.T) {
	t.Parallel()
	w := serve(httplimit.New(grants(), httplimit.WithShadow(), httplimit.WithPrefix(""), httplimit.WithErrorHandler(new(errorLog).hook))(refuseAll(t)), newRequest(t))
	assert.Equal(t, http.StatusInternalServerError, w.Code)
}

// What is granted to nobody is not given back either.
func TestShadowGivesBackWhatWasCharged(t *testing.T) {
	t.Parallel()
	granting, refusing := &returner{fake: grants()}, &returner{fake: says(limit.Decision{Limit: 1}, nil)}
	failing := &returner{fake: says(limit.Decision{}, errDown)}
	w := serve(httplimit.New(granting, httplimit.WithShadow(), httplimit.WithErrorHandler(new(errorLog).hook),
		httplimit.WithFailure(limit.FailOpen()),
		httplimit.WithPolicy(httplimit.Policy{Name: "b", Limiter: refusing}),
		httplimit.WithPolicy(httplimit.Policy{Name: "c", Limiter: failing}))(hello), newRequest(t))
	assert.Equal(t, "hello", w.Body.String())
	assert.Len(t, granting.givenBack(), 1)
	assert.Empty(t, refusing.givenBack())
	assert.Empty(t, failing.givenBack())
}

// A limiter that hangs costs three requests the timeout, whatever answers for it.
func TestHungLimiter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		option httplimit.Option
		status int
	}{
		"closed":   {httplimit.WithFailure(limit.FailClosed()), http.StatusServiceUnavailable},
		"open":     {httplimit.WithFailure(limit.FailOpen()), http.StatusOK},
		"fallback": {httplimit.WithFallback(httplimit.Local(1000, time.Minute)), http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				told := &limitertest.Recorder{}
				var errs errorLog
				hanging := &fake{answer: func(ctx context.Context, _ int64) (limit.Decision, error) {
					<-ctx.Done()
					return limit.Decision{}, ctx.Err()
				}}
				handler := httplimit.New(hanging, c.option, httplimit.WithObserver(told), httplimit.WithErrorHandler(errs.hook))(hello)
				for i := range 50 {
					began := time.Now()
					assert.Equal(t, c.status, serve(handler, newRequest(t)).Code)
					if i >= 3 {
						assert.LessOrEqual(t, time.Since(began), 5*time.Millisecond)
						assert.ErrorIs(t, errs.all()[i], limit.ErrUnavailable)
					}
					time.Sleep(time.Millisecond)
				}
				assert.Len(t, hanging.asked(), 3)
				assert.Len(t, errs.all(), 50, "each failure is told")
				synctest.Wait()
				require.Len(t, told.Events(), 1)
				assert.Equal(t, limit.AskedNoMore, told.Events()[0].Kind)
				assert.Equal(t, "default", told.Events()[0].Limiter)
				time.Sleep(time.Minute)
			})
		})
	}
}

// Of the limit that a log told this process has its share, with the headers of that.
func TestFailLocal(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		var down error
		l := slidinglog.New(rdb, slidinglog.Config{Limit: 10, Window: time.Minute})
		flaky := windowed{&fake{answer: func(ctx context.Context, n int64) (limit.Decision, error) {
			if down != nil {
				return limit.Decision{}, down
			}
			return l.Take(ctx, "k", n)
		}}, time.Minute}
		handler := httplimit.New(flaky, httplimit.WithFailure(limit.FailLocal(0.2)), httplimit.WithErrorHandler(new(errorLog).hook))(hello)
		assert.Equal(t, http.StatusOK, serve(handler, newRequest(t)).Code)
		down = errors.Join(limit.ErrUnavailable, errDown)
		for _, want := range []int{200, 200, 429} {
			w := serve(handler, newRequest(t))
			assert.Equal(t, want, w.Code)
			assert.Equal(t, map[string]int64{"q": 2, "w": 60}, members(t, w.Header(), "RateLimit-Policy")[0].params)
		}
		down = nil
		time.Sleep(time.Second)
		w := serve(handler, newRequest(t))
		assert.Equal(t, map[string]int64{"q": 10, "w": 60}, members(t, w.Header(), "RateLimit-Policy")[0].params, "the probe is an answer")
	})
}

// In a 429 only policies that stand in the way tell when there is more, so that
// Retry-After is never earlier than a t.
func TestNoResetOfPoliciesThatDoNotBlock(t *testing.T) {
	t.Parallel()
	refusing := httplimit.Policy{Name: "burst", Limiter: says(limit.Decision{Limit: 5, RetryAfter: 3 * time.Second, ResetAfter: 9 * time.Second}, nil)}
	for name, c := range map[string]struct {
		decision limit.Decision
		cost     int64
		retry    string
		timed    bool
	}{
		"some are left":       {limit.Decision{Granted: true, Limit: 10, Remaining: 4, ResetAfter: time.Hour}, 1, "3", false},
		"as many as it takes": {limit.Decision{Granted: true, Limit: 10, Remaining: 2, ResetAfter: time.Hour}, 2, "3", false},
		"too few are left":    {limit.Decision{Granted: true, Limit: 10, Remaining: 1, ResetAfter: time.Hour}, 2, "3600", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hour := httplimit.Policy{Name: "hour", Limiter: says(c.decision, nil)} // what it grants stays taken
			handler := httplimit.New(hour.Limiter, httplimit.WithName("hour"), httplimit.WithPolicy(refusing),
				httplimit.WithCost(func(*http.Request) int64 { return c.cost }))(refuseAll(t))
			w := serve(handler, newRequest(t))
			assert.Equal(t, http.StatusTooManyRequests, w.Code)
			assert.Equal(t, c.retry, w.Header().Get("Retry-After"))
			list := members(t, w.Header(), "RateLimit")
			_, timed := list[0].params["t"]
			assert.Equal(t, c.timed, timed)
			assert.EqualValues(t, 3, list[1].params["t"])
			assert.Len(t, members(t, w.Header(), "RateLimit-Policy"), 2)
		})
	}
}
