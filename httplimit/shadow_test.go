package httplimit_test

import (
	"net/http"
	"testing"
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
			httplimit.WithLegacyHeaders(), policy("hour", hour))(hello)
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

// What is granted to nobody is not given back either.
func TestShadowGivesBackWhatWasCharged(t *testing.T) {
	t.Parallel()
	granting, refusing := &returner{Fake: grants()}, &returner{Fake: says(limit.Decision{Limit: 1}, nil)}
	failing := &returner{Fake: says(limit.Decision{}, errDown)}
	w := serve(httplimit.New(granting, httplimit.WithShadow(), quiet,
		httplimit.WithFailure(limit.FailOpen()),
		policy("b", refusing),
		policy("c", failing))(hello), newRequest(t))
	assert.Equal(t, "hello", w.Body.String())
	assert.Len(t, granting.GivenBack(), 1)
	assert.Empty(t, refusing.GivenBack())
	assert.Empty(t, failing.GivenBack())
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
			_, timed := list[0].Params["t"]
			assert.Equal(t, c.timed, timed)
			assert.EqualValues(t, 3, list[1].Params["t"])
			assert.Len(t, members(t, w.Header(), "RateLimit-Policy"), 2)
		})
	}
}
