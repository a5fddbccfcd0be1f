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
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
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

// It does so without a hash tag too.
func TestBucketsAreKeptApart(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		bucket := tokenbucket.New(rdb, tokenbucket.Config{Capacity: 1, Refill: 1, Interval: time.Hour})
		down := says(limit.Decision{}, errDown)
		for prefix, handler := range map[string]http.Handler{
			"a:":   httplimit.New(bucket, httplimit.WithPrefix("a:"), httplimit.WithKey(httplimit.Header("X-User")))(hello),
			"b:d:": httplimit.New(says(limit.Decision{Granted: true}, nil), httplimit.WithPrefix("b:"), httplimit.WithKey(httplimit.Header("X-User")), httplimit.WithPolicy(httplimit.Policy{Name: "d", Limiter: bucket}))(hello),
			"c:":   httplimit.New(down, httplimit.WithPrefix("c:"), httplimit.WithKey(httplimit.Header("X-User")), httplimit.WithFallback(bucket), httplimit.WithErrorHandler(new(errorLog).hook))(hello),
		} {
			ask := func(user string) int {
				r := newRequest(t)
				r.Header.Set("X-User", user)
				return serve(handler, r).Code
			}
			users := []string{"ann", "ann_time", "ann_time_time", "ann_time%", "time", "_time"}
			for _, user := range users {
				assert.Equal(t, http.StatusOK, ask(user), user)
			}
			for range 3 {
				for _, user := range users {
					assert.Equal(t, http.StatusTooManyRequests, ask(user), user)
				}
			}
			assert.Len(t, rdb.Keys(t.Context(), prefix+"*").Val(), 2*len(users))
			assert.EqualValues(t, 1, rdb.Exists(t.Context(), prefix+"ann_time%").Val())
		}
	})
}

// Other limiters have no second key: the end of a path stays as it is.
func TestOtherKeysStayAsTheyAre(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "limit:ann:/local_time", keyOf(t, "limit:", "ann", "/local_time"))
}

// No wait brings what a threshold of 0 refuses.
func TestThresholdOfZero(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		limiter := slidinglog.New(rdb, slidinglog.Config{Limit: 2, Window: time.Minute, Thresholds: "config"})
		require.NoError(t, limiter.SetThreshold(t.Context(), "http:192.0.2.1", 0))
		w := serve(httplimit.New(limiter)(refuseAll(t)), newRequest(t))
		assert.Equal(t, http.StatusTooManyRequests, w.Code)
		assert.NotContains(t, w.Header(), "Retry-After")
		assert.Equal(t, `"default";r=0`, w.Header().Get("RateLimit"))
		assert.NotContains(t, problem(t, w)["detail"], "can pass in")
	})
}

// A request that costs too much is told what the limit is.
func TestCostAboveTheLimitOfEachLimiter(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		for name, limiter := range limiters(t, rdb) {
			handler := httplimit.New(limiter, httplimit.WithCost(func(*http.Request) int64 { return 6 }))(refuseAll(t))
			w := serve(handler, newRequest(t))
			assert.Equal(t, http.StatusTooManyRequests, w.Code, name)
			assert.Equal(t, `"default";q=5;w=10`, w.Header().Get("RateLimit-Policy"), name)
			assert.NotContains(t, w.Header(), http.CanonicalHeaderKey("RateLimit"), name)
			assert.NotContains(t, w.Header(), "Retry-After", name)
		}
	})
}

// What one policy granted and can't take back counts in Retry-After.
func TestRetryAfterOfAGrantThatStays(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		hour := slidinglog.New(rdb, slidinglog.Config{Limit: 1, Window: time.Hour})
		burst := slidinglog.New(rdb, slidinglog.Config{Limit: 1, Window: 10 * time.Second})
		_, err := burst.Take(t.Context(), "http:burst:192.0.2.1", 1)
		require.NoError(t, err)
		plain := struct{ limit.Limiter }{hour}
		handler := httplimit.New(plain, httplimit.WithPolicy(httplimit.Policy{Name: "burst", Limiter: burst}))(hello)
		w := serve(handler, newRequest(t))
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		retry := time.Duration(integer(t, w.Header().Get("Retry-After"))) * time.Second
		assert.Equal(t, time.Hour, retry)
		time.Sleep(retry)
		assert.Equal(t, http.StatusOK, serve(handler, newRequest(t)).Code)
	})
}

// When all is there again is not told of a policy that got back what it granted:
// the limiter said so for the moment before.
func TestResetIsNotToldOfWhatWasGivenBack(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		hour := slidinglog.New(rdb, slidinglog.Config{Limit: 10, Window: time.Hour})
		_, err := hour.Take(t.Context(), "http:hour:192.0.2.1", 1)
		require.NoError(t, err)
		time.Sleep(50 * time.Minute)
		w := serve(httplimit.New(hour, httplimit.WithName("hour"),
			httplimit.WithPolicy(httplimit.Policy{Name: "b", Limiter: says(limit.Decision{Limit: 1, RetryAfter: time.Second}, nil)}))(refuseAll(t)), newRequest(t))
		assert.Equal(t, `"hour";r=9, "b";r=0;t=1`, w.Header().Get("RateLimit"))
	})
}

// Routes of different rates that a router calls by the same pattern.
func TestDeclaredRatesDoNotShareKeys(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		rate := httplimit.Declare(func(r httplimit.Rate) limit.Limiter {
			return slidinglog.New(rdb, slidinglog.Config{Limit: r.Threshold, Window: r.Period})
		})
		get := rate(httplimit.Rate{Period: time.Hour, Threshold: 2})(hello)
		post := rate(httplimit.Rate{Period: time.Second, Threshold: 100})(hello)
		passed := 0
		for range 20 {
			r := newRequest(t)
			r.Pattern = "/items/{id}" // as chi and the gin adapter say
			if serve(get, r).Code == http.StatusOK {
				passed++
			}
			time.Sleep(2 * time.Second)
			assert.Equal(t, http.StatusOK, serve(post, r).Code)
		}
		assert.Equal(t, 2, passed)
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
			httplimit.WithFallback(httplimit.Local(1, time.Hour)))(hello)

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
