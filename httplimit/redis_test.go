package httplimit_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// limiters returns each limiter of this module, of 5 in 10 seconds.
func limiters(t *testing.T, rdb *redis.Client) map[string]limit.Limiter {
	client := rratelimiter.New(rdb)
	t.Cleanup(func() { assert.NoError(t, client.Close(t.Context())) })
	return map[string]limit.Limiter{
		"keyed":       client.Keyed("rate:", rratelimiter.Config{Rate: 5, Interval: 10 * time.Second}),
		"fixedwindow": fixedwindow.New(rdb, fixedwindow.Config{Limit: 5, Window: 10 * time.Second}),
		"slidinglog":  slidinglog.New(rdb, slidinglog.Config{Limit: 5, Window: 10 * time.Second}),
		"tokenbucket": tokenbucket.New(rdb, tokenbucket.Config{Capacity: 5, Refill: 5, Interval: 10 * time.Second}),
	}
}

// Whatever the limiter: its limit passes, the next request does not, and the same
// passes when Retry-After is over, not a second before.
func TestEachLimiter(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		for name, limiter := range limiters(t, rdb) {
			handler := httplimit.New(limiter, httplimit.WithPrefix(name+":"))(hello)
			for i := range int64(5) {
				w := serve(handler, newRequest(t))
				require.Equal(t, http.StatusOK, w.Code, name)
				assert.Equal(t, []member{{"default", map[string]int64{"q": 5, "w": 10}}}, members(t, w.Header(), "RateLimit-Policy"), name)
				assert.Equal(t, 4-i, members(t, w.Header(), "RateLimit")[0].params["r"], name)
			}
			time.Sleep(1500 * time.Millisecond)
			w := serve(handler, newRequest(t))
			require.Equal(t, http.StatusTooManyRequests, w.Code, name)
			retry := time.Duration(integer(t, w.Header().Get("Retry-After"))) * time.Second
			assert.LessOrEqual(t, retry, 10*time.Second, name)
			time.Sleep(retry - 1100*time.Millisecond)
			require.Equal(t, http.StatusTooManyRequests, serve(handler, newRequest(t)).Code, name)
			time.Sleep(1100 * time.Millisecond)
			require.Equal(t, http.StatusOK, serve(handler, newRequest(t)).Code, name)
		}
		for _, key := range rdb.Keys(t.Context(), "*").Val() {
			assert.Regexp(t, `^(\{?rate:keyed|fixedwindow|slidinglog|tokenbucket):192\.0\.2\.1`, key)
		}
	})
}

// All limiters of this module at once, beside one that refuses: nothing of what
// they granted stays taken, and what the answer says remains is what remains.
func TestEachLimiterGivesBack(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		gate := &fake{}
		opts := []httplimit.Option{httplimit.WithCost(func(*http.Request) int64 { return 2 })}
		for name, limiter := range limiters(t, rdb) {
			opts = append(opts, httplimit.WithPolicy(httplimit.Policy{Name: name, Limiter: limiter}))
		}
		ask := func(code int, remaining int64) {
			t.Helper()
			gate.answer = says(limit.Decision{Granted: code == http.StatusOK, Limit: 9, Remaining: 9, RetryAfter: time.Second}, nil).answer
			w := serve(httplimit.New(gate, opts...)(hello), newRequest(t))
			require.Equal(t, code, w.Code)
			for _, m := range members(t, w.Header(), "RateLimit")[1:] {
				assert.Equal(t, remaining, m.params["r"], m.name)
			}
		}
		for range 3 {
			ask(http.StatusTooManyRequests, 5)
		}
		ask(http.StatusOK, 3)
		time.Sleep(time.Second)
		for range 3 {
			ask(http.StatusTooManyRequests, 3)
		}
		ask(http.StatusOK, 1)
	})
}

// A threshold set in Redis counts for the next request, as for Java services on
// the same keys.
func TestDeclaredThresholdIsChangedWhileItRuns(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		rate := httplimit.Declare(func(r httplimit.Rate) limit.Limiter {
			return slidinglog.New(rdb, slidinglog.Config{Limit: r.Threshold, Window: r.Period, Thresholds: "rate:limit:config"})
		}, httplimit.WithPrefix("limit:"), httplimit.WithKey(httplimit.Header("X-User"), httplimit.Path()))
		mux := http.NewServeMux()
		mux.Handle("GET /items/1", rate(httplimit.Rate{Period: 30 * time.Second, Threshold: 2})(hello))
		ask := func(code int, most int64) {
			t.Helper()
			r := newRequest(t)
			r.Header.Set("X-User", "ann")
			w := serve(mux, r)
			assert.Equal(t, code, w.Code)
			assert.Equal(t, map[string]int64{"q": most, "w": 30}, members(t, w.Header(), "RateLimit-Policy")[0].params)
		}
		ask(http.StatusOK, 2)
		ask(http.StatusOK, 2)
		ask(http.StatusTooManyRequests, 2)
		require.NoError(t, rdb.HSet(t.Context(), "rate:limit:config", "limit:ann:/items/1", "3").Err())
		ask(http.StatusOK, 3)
		ask(http.StatusTooManyRequests, 3)
		require.NoError(t, rdb.HSet(t.Context(), "rate:limit:config", "limit:ann:/items/1", "0").Err())
		ask(http.StatusTooManyRequests, 0)
		assert.EqualValues(t, 3, rdb.ZCard(t.Context(), "limit:ann:/items/1").Val())
	})
}

// A bucket has a second key, with "_time" behind the first: nobody chooses a name
// that leads to another's.
func TestHashTagKeepsBucketsApart(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		bucket := tokenbucket.New(rdb, tokenbucket.Config{Capacity: 1, Refill: 1, Interval: time.Hour})
		handler := httplimit.New(bucket, httplimit.WithKey(httplimit.Header("X-User")), httplimit.WithHashTag())(hello)
		for _, user := range []string{"ann", "ann_time", ""} {
			r := newRequest(t)
			r.Header.Set("X-User", user)
			assert.Equal(t, http.StatusOK, serve(handler, r).Code, user)
			assert.Equal(t, http.StatusTooManyRequests, serve(handler, r).Code, user)
		}
		assert.ElementsMatch(t, []string{
			"http:{ann}", "http:{ann}_time", "http:{ann_time}", "http:{ann_time}_time", "http:{%}", "http:{%}_time",
		}, rdb.Keys(t.Context(), "*").Val())
	})
}

func TestRedisGoesDownAndComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		var errs errorLog
		limiter := fixedwindow.New(rdb, fixedwindow.Config{Limit: 10, Window: time.Hour})
		closed := httplimit.New(limiter, httplimit.WithErrorHandler(errs.hook))(hello)
		local := httplimit.New(limiter, httplimit.WithErrorHandler(errs.hook),
			httplimit.WithFailure(httplimit.Fallback(httplimit.Local(1, time.Hour))))(hello)

		assert.Equal(t, http.StatusOK, serve(closed, newRequest(t)).Code)
		m.SetError("LOADING the data set")
		began := time.Now()
		assert.Equal(t, http.StatusServiceUnavailable, serve(closed, newRequest(t)).Code)
		assert.Equal(t, http.StatusOK, serve(local, newRequest(t)).Code)
		assert.Equal(t, http.StatusTooManyRequests, serve(local, newRequest(t)).Code)
		assert.LessOrEqual(t, time.Since(began), 3*httplimit.DefaultTimeout)
		assert.Len(t, errs.all(), 3)

		m.SetError("")
		time.Sleep(time.Minute) // a call that was under way is given back
		w := serve(local, newRequest(t))
		assert.Equal(t, http.StatusOK, w.Code)
		assert.EqualValues(t, 8, members(t, w.Header(), "RateLimit")[0].params["r"])
	})
}
